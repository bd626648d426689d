"""Sampling: operators, and the worker's sampler with penalties, masks and log-probabilities."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

HARMLESS: Harmless = {}

SAMPLER = Part(
    name="sampler",
    files={
        "atom-kernels/src/atom_kernels/sampling/triton_*.py": (
            "atom-kernels/tests/triton_kernels/test_triton_sampling.py",
        ),
        "atom-kernels/src/atom_kernels/sampling/*.py": (
            "atom-kernels/tests/test_sampling.py",
        ),
        "atom-core/src/atom_core/worker/sampler*.py": (
            "atom-core/tests/test_token_masks.py",
            "atom-core/tests/test_sampling_parameters.py",
            "atom-core/tests/test_llm_engine.py",
        ),
        "atom-core/src/atom_core/worker/sampling_extras.py": (
            "atom-core/tests/test_token_masks.py",
            "atom-core/tests/test_sampling_parameters.py",
            "atom-core/tests/test_llm_engine.py",
        ),
        "atom-core/src/atom_core/worker/logprobs.py": (
            "atom-core/tests/test_token_masks.py",
            "atom-core/tests/test_sampling_parameters.py",
            "atom-core/tests/test_llm_engine.py",
        ),
        "atom-core/src/atom_core/worker/token_masks.py": (
            "atom-core/tests/test_token_masks.py",
            "atom-core/tests/test_sampling_parameters.py",
            "atom-core/tests/test_llm_engine.py",
        ),
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
