"""Checkpoints and weights: what is read, and where it goes."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_MODELS = "atom-models/src/atom_models"
_TESTS = (
    "atom-models/tests/test_gguf_header.py",
    "atom-models/tests/test_weight_loading.py",
    "atom-models/tests/test_gguf_weights.py",
    "atom-models/tests/test_checkpoints_open.py",
    "atom-models/tests/test_published_formats.py",
    "atom-models/tests/test_unread_config_fields.py",
    "atom-models/tests/test_gguf_architectures.py",
    "atom-models/tests/test_load_model.py",
    "atom-models/tests/test_published_configs.py",
    "atom-models/tests/test_model_requirements.py",
    "atom-models/tests/test_held_formats.py",
    "atom-core/tests/test_gguf_tokenizers.py",
    "atom-models/tests/test_quantization_files.py",
    "atom-models/tests/test_tensor_parallel_layers.py",
    "atom-models/tests/test_prediction_layers.py",
    "atom-core/tests/test_embedding_folders.py",
)

HARMLESS: Harmless = {
    ("renamed_source.py: _stored", "sorted(self.source.names())", "*"): "an order that decides between twins alone",
    ("gguf_file.py", "4096", "4097"): "the next power of two is far away",
}

LOADER = Part(
    name="loader",
    files={
        f"{_MODELS}/checkpoint/rope_choice.py": ("atom-core/tests/test_engine_args.py",),
        f"{_MODELS}/weights/*.py": _TESTS,
        f"{_MODELS}/checkpoint/**/*.py": _TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
