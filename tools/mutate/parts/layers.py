"""Layers, and the architectures made of them."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_MODELS = "atom-models/src/atom_models"
_TESTS = (
    "atom-models/tests/test_layers.py",
    "atom-models/tests/test_moe_layers.py",
    "atom-models/tests/test_latent_attention_layers.py",
    "atom-models/tests/test_tensor_parallel_layers.py",
    "atom-models/tests/test_fine_grained_moe.py",
    "atom-models/tests/test_published_configs.py",
    "atom-models/tests/test_architectures.py",
    "atom-models/tests/test_dense_architectures.py",
    "atom-models/tests/test_llama_against_transformers.py",
)

HARMLESS: Harmless = {}

LAYERS = Part(
    name="layers",
    files={
        f"{_MODELS}/layers/*.py": _TESTS,
        f"{_MODELS}/architectures/*.py": _TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
