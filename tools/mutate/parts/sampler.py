"""Sampling: operators, and the worker's sampler with penalties, masks and log-probabilities."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_KERNELS = "atom-kernels/src/atom_kernels/sampling"
_WORKER = "atom-core/src/atom_core/worker"
_WORKER_TESTS = (
    "atom-core/tests/test_logits_before_sampling.py",
    "atom-core/tests/test_token_masks.py",
    "atom-core/tests/test_sampling_parameters.py",
    "atom-core/tests/test_llm_engine.py",
)

HARMLESS: Harmless = {}

SAMPLER = Part(
    name="sampler",
    files={
        f"{_KERNELS}/triton_*.py": ("atom-kernels/tests/triton_kernels/test_triton_sampling.py",),
        f"{_KERNELS}/*.py": ("atom-kernels/tests/test_sampling.py",),
        f"{_WORKER}/sampl*.py": _WORKER_TESTS,
        f"{_WORKER}/logprobs.py": _WORKER_TESTS,
        f"{_WORKER}/token_masks.py": _WORKER_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
