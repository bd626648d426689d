"""Layers, and the architectures made of them."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

HARMLESS: Harmless = {}

LAYERS = Part(
    name="layers",
    files={
        "atom-models/src/atom_models/layers/*.py": (
            "atom-models/tests/test_layers.py",
            "atom-models/tests/test_moe_layers.py",
            "atom-models/tests/test_latent_attention_layers.py",
            "atom-models/tests/test_tensor_parallel_layers.py",
            "atom-models/tests/test_published_configs.py",
            "atom-models/tests/test_architectures.py",
            "atom-models/tests/test_dense_architectures.py",
            "atom-models/tests/test_llama_against_transformers.py",
        ),
        "atom-models/src/atom_models/architectures/*.py": (
            "atom-models/tests/test_layers.py",
            "atom-models/tests/test_moe_layers.py",
            "atom-models/tests/test_latent_attention_layers.py",
            "atom-models/tests/test_tensor_parallel_layers.py",
            "atom-models/tests/test_published_configs.py",
            "atom-models/tests/test_architectures.py",
            "atom-models/tests/test_dense_architectures.py",
            "atom-models/tests/test_llama_against_transformers.py",
        ),
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
