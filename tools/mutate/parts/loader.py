"""Checkpoints and weights: what is read, and where it goes."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

HARMLESS: Harmless = {}

LOADER = Part(
    name="loader",
    files={
        "atom-models/src/atom_models/weights/*.py": (
            "atom-models/tests/test_gguf_header.py",
            "atom-models/tests/test_weight_loading.py",
            "atom-models/tests/test_gguf_weights.py",
            "atom-models/tests/test_checkpoints_open.py",
        ),
        "atom-models/src/atom_models/checkpoint/*.py": (
            "atom-models/tests/test_gguf_header.py",
            "atom-models/tests/test_weight_loading.py",
            "atom-models/tests/test_gguf_weights.py",
            "atom-models/tests/test_checkpoints_open.py",
        ),
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
