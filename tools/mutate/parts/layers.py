"""Layers, and the architectures made of them."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_MODELS = "atom-models/src/atom_models"
_TESTS = (
    "atom-models/tests/test_layers.py",
    "atom-models/tests/test_attention_layers.py",
    "atom-models/tests/test_moe_layers.py",
    "atom-models/tests/test_layers_with_experts.py",
    "atom-models/tests/test_latent_attention_layers.py",
    "atom-models/tests/test_tensor_parallel_layers.py",
    "atom-models/tests/test_config_fields.py",
    "atom-models/tests/test_unread_config_fields.py",
    "atom-models/tests/test_fine_grained_moe.py",
    "atom-models/tests/test_published_configs.py",
    "atom-models/tests/test_dense_architectures.py",
    "atom-models/tests/test_llama_against_transformers.py",
    "atom-models/tests/test_llama_compiled.py",
    "atom-models/tests/test_architectures.py",
    "atom-models/tests/test_held_formats.py",
    "atom-models/tests/test_model_requirements.py",
    "atom-models/tests/test_gguf_packed.py",
    "atom-models/tests/test_cache_scales_of_checkpoints.py",
    "atom-models/tests/test_stages.py",
    "atom-models/tests/test_norms_of_a_gpu.py",
    "atom-models/tests/test_published_formats.py",
    "atom-models/tests/test_load_model.py",
    "atom-models/tests/test_weight_loading.py",
    "atom-models/tests/test_packed_experts.py",
    "atom-core/tests/test_states_in_slots.py",
)

_STATED_WINDOW = "the config of every family with windows states their size"
_NO_NORM = "norms of heads come in pairs, and without them nothing reads it"
HARMLESS: Harmless = {
    ("matrices.py: on_rank", "theirs, held", "held, theirs"): "to differ in tiles alone is mutual",
    ("llama.py: LlamaConfig", "1e-6", "*"): "the config of every family states its epsilon",
    ("llama.py: LlamaConfig", "2048", "*"): "the config of every family states its context",
    ("gpt_oss.py: GptOssConfig", "1e-5", "*"): "the config of every family states its epsilon, too",
    ("gpt_oss.py: GptOssConfig", "128", "129"): _STATED_WINDOW,
    ("qwen2.py: Qwen2Config", "4096", "4097"): _STATED_WINDOW,
    ("attention.py: _prologue", "q_norm is None", "*"): _NO_NORM,
    ("attention.py: _prologue", "k_norm is None", "*"): _NO_NORM,
    ("attention.py: _prologue", "1e-6", "*"): _NO_NORM,
    ("residual.py: normed", "term, self._total", "self._total, term"): "a sum has no order",
    ("mla.py: mla_scale", "factor <= 1", "factor < 1"): "the logarithm of 1 is 0",
}

LAYERS = Part(
    name="layers",
    files={
        f"{_MODELS}/layers/**/*.py": _TESTS,
        f"{_MODELS}/architectures/*.py": _TESTS,
        f"{_MODELS}/config/*.py": _TESTS,
        f"{_MODELS}/decoder/*.py": _TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
