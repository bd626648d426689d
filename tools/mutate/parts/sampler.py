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

_EXAMPLES = "numbers that `check` and `bench` try: others do as well"
_ON_A_GPU = "only a GPU comes here: tests marked gpu look at it"
_NAMES = "names of what comes out as a mapping"
_ANY_PIVOTS = "any pivots would do: they make the search short and decide nothing"
HARMLESS: Harmless = {
    ("sampling/ops.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("sampling/ops.py: turns", "*", "*"): _EXAMPLES,
    ("race.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("sampling/sampler.py: sample", 'logits_BV.device.type == "cuda"', "*"): _ON_A_GPU,
    (
        "sampling/sampler.py: sample",
        "return triton_backend.sample_by_triton(logits_BV, uniform_B, temperature_B, top_k_B, top_p_B, min_p_B)",
        "*",
    ): _ON_A_GPU,
    (
        "sampling/sampler.py: sample",
        'logits_BV.device.type == "cpu"',
        'logits_BV.device.type != "cpu"',
    ): "on a CPU the same tokens, only later; " + _ON_A_GPU,
    ("triton_filters.py: pivot_kernel", "tl.arange(0, CHUNKS) < num_chunks", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "high, middle - 1", "middle - 1, high"): _ANY_PIVOTS,
    ("triton_draw.py", "row, row_stride", "row_stride, row"): "their product alone is taken",
    ("triton_filters.py", "row, row_stride", "row_stride, row"): "their product alone is taken",
    ("triton_backend.py: of", "num_rows >= _MANY_ROWS", "*"): "how many chunks a program takes is its speed alone",
    ("triton_draw.py: _uniform", "True", "False"): "an int64 has the same bits as an uint64 either way",
    ("triton_backend.py", '"CHUNK", "GROUP"', "*"): _NAMES,
    ("triton_backend.py", '"CHUNK", "CHUNKS"', "*"): _NAMES,
    ("triton_backend.py", '"CHUNKS", "GROUP"', "*"): _NAMES,
    ("sampling/slots.py: sample_slots", 'logits_nV.device.type == "cuda"', "*"): _ON_A_GPU,
    (
        "torch_backend.py: sample_by_torch",
        "return logits_BV.argmax(dim=-1)",
        "pass",
    ): "a short cut: where no row is random, what follows gives the best token as well",
}

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
