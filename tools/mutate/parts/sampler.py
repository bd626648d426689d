"""Sampling: operators, and the worker's sampler with penalties, masks and log-probabilities."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_KERNELS = "atom-kernels/src/atom_kernels/sampling"
_WORKER = "atom-core/src/atom_core/worker/sampling"
_WORKER_TESTS = (
    "atom-core/tests/test_logits_before_sampling.py",
    "atom-core/tests/test_token_masks.py",
    "atom-core/tests/test_sampling_parameters.py",
    "atom-core/tests/test_llm_engine.py",
    "atom-core/tests/test_draft_sampling.py",
    "atom-core/tests/test_model_drafter.py",
    "atom-core/tests/test_sampling_over_ranks.py",
)
_OPERATOR_TESTS = (
    "atom-kernels/tests/test_sampling.py",
    "atom-kernels/tests/test_operators_parity.py",
    "atom-core/tests/test_draft_sampling.py",
    "atom-core/tests/test_model_drafter.py",
)

_EXAMPLES = "numbers that `check` and `bench` try: others do as well"
_NAMES = "names of what comes out as a mapping"
_ANY_PIVOTS = "any pivots would do: they make the search short and decide nothing"
_HOW_SOON = "any key between ends the search: how soon is its speed alone"
_HOW_SOON_FOUND = "where the candidates lie and how many are looked at together is speed alone"
HARMLESS: Harmless = {
    (
        "sampling/extras.py: _ban_words",
        "longest - 1",
        "longest + 1",
    ): "of a longer tail each word looks at its own part",
    ("sampling/extras.py: _ban_words", "longest > 1", "longest >= 1"): "a word of one token looks at no tail",
    ("sampling/contract.py: _sample_row", "top_p < 1", "top_p <= 1"): "the tokens that reach all of the mass are all",
    ("sampling/ops.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("sampling/ops.py: turns", "*", "*"): _EXAMPLES,
    ("masks.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("sampling/drafts.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("penalties.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("logprobs.py: _make_inputs", "*", "*"): _EXAMPLES,
    ("triton_filters.py: pivot_kernel", "best - bests", "best + bests"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", 'bests > float("-inf")', "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", 'bests < float("inf")', "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", '(bests > float("-inf")) & (bests < float("inf"))', "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "scale > 0", "scale >= 0"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "1.0", "2.0"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "1 - top_p", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "1e-6", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "tl.maximum", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "(tl.maximum(nats, 0.0) + 1.0) * temperature", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "tl.maximum(nats, 0.0) + 1.0", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "(steps - 3) * 0.25", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "steps - 3", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "3", "4"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "0.25", "*"): _ANY_PIVOTS,
    ("triton_filters.py: _between", "0.5 * (logit_of(low) + logit_of(last))", "*"): _HOW_SOON,
    ("triton_filters.py: _between", "0.5", "*"): _HOW_SOON,
    ("triton_filters.py: _between", '(step < 24) & (logit > float("-inf"))', "*"): _HOW_SOON,
    ("triton_filters.py: _between", '(step < 24) & (logit > float("-inf")) & (logit < float("inf"))', "*"): _HOW_SOON,
    ("triton_filters.py: _between", "step < 24", "*"): _HOW_SOON,
    ("triton_filters.py: _between", "24", "*"): _HOW_SOON,
    ("triton_filters.py: _between", 'logit > float("-inf")', "*"): _HOW_SOON,
    ("triton_filters.py: _between", 'logit < float("inf")', "*"): _HOW_SOON,
    (
        "triton_filters.py: pivot_sum_kernel",
        "inside & (chunk_best >= tl.min(pivots, axis=0))",
        "inside | (chunk_best >= tl.min(pivots, axis=0))",
    ): "a chunk too low for all pivots adds nothing, and what lies past the end reaches a pivot that all tokens reach",
    (
        "triton_filters.py: pivot_sum_kernel",
        "top_k > num_chunks",
        "top_k >= num_chunks",
    ): "as many tokens as chunks reach each pivot anyhow: the sums are not read",
    ("triton_filters.py: search_kernel", "most > REGION", "most >= REGION"): _HOW_SOON_FOUND,
    ("triton_filters.py: search_kernel", "most <= 8", "*"): _HOW_SOON_FOUND,
    ("triton_rows.py: logit_of", "*", "*"): _HOW_SOON,
    (
        "triton_filters.py: window_kernel",
        "(keys >= low) & (keys < high) & (ids < vocab_size)",
        "*",
    ): "the search looks at the keys of its candidates again: more of them take it longer",
    ("triton_backend.py", "256", "257"): "what does not fit in a region is searched in the row",
    (
        "triton_backend.py: _find_thresholds",
        "num_rows, num_chunks",
        "num_chunks, num_rows",
    ): "memory whose shape nobody reads",
    ("triton_backend.py: of", "1", "2"): "how many chunks a program takes is its speed alone",
    (
        "triton_draw.py: kept_mass_kernel",
        "(temperature > 0) & (min_p > 0)",
        "(temperature > 0) | (min_p > 0)",
    ): "where nothing is filtered the sums come out the same, and greedy rows do not read them",
    ("triton_draw.py: kept_mass_kernel", "min_p > 0", "min_p >= 0"): "what keeps all sums up to the same",
    (
        "sampling/extras.py: process",
        "self.bias_ids is not None and self.bias_values is not None",
        "self.bias_ids is not None or self.bias_values is not None",
    ): "both are there, or neither",
    ("triton_filters.py: pivot_kernel", "tl.arange(0, CHUNKS) < num_chunks", "*"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "high, middle - 1", "middle - 1, high"): _ANY_PIVOTS,
    ("triton_filters.py: pivot_kernel", "0.0", "1.0"): "no chunk has the scale 0, and any pivots would do",
    ("triton_filters.py: pivot_kernel", "best - bests, 0.0", "*"): _ANY_PIVOTS,
    (
        "triton_filters.py: pivot_kernel",
        "best - tl.where(scale > 0, scale, 1.0) * tl.exp2((steps - 3) * 0.25)",
        "*",
    ): _ANY_PIVOTS,
    **{
        (f"{file}.py", *edit): reason
        for file in ("triton_draw", "triton_filters", "triton_drafts")
        for edit, reason in (
            (("slots_ptr, row", "row, slots_ptr"), "their sum alone is taken"),
            (("wait_for_inputs(DEPENDENT)", "pass"), "there is something to wait for on a GPU alone"),
        )
    },
    ("triton_filters.py", "1e-4", "*"): _HOW_SOON,
    ("triton_draw.py", "row, row_stride", "row_stride, row"): "their product alone is taken",
    ("triton_filters.py", "row, row_stride", "row_stride, row"): "their product alone is taken",
    ("triton_backend.py: of", "num_rows >= _MANY_ROWS", "*"): "how many chunks a program takes is its speed alone",
    ("triton_draw.py: _uniform", "True", "False"): "an int64 has the same bits as an uint64 either way",
    ("triton_backend.py", '"CHUNK", "GROUP"', "*"): _NAMES,
    ("triton_backend.py", '"CHUNK", "CHUNKS"', "*"): _NAMES,
    ("triton_backend.py", '"CHUNKS", "GROUP"', "*"): _NAMES,
    (
        "torch_backend.py: sample_by_torch",
        "return logits_BV.argmax(dim=-1)",
        "pass",
    ): "a short cut: where no row is random, what follows gives the best token as well",
}

SAMPLER = Part(
    name="sampler",
    files={
        f"{_KERNELS}/drafts.py": ("atom-kernels/tests/test_accepting_draws.py",),
        f"{_KERNELS}/triton_drafts.py": ("atom-kernels/tests/triton_kernels/test_triton_accepting_draws.py",),
        f"{_KERNELS}/triton_backend.py": (
            "atom-kernels/tests/triton_kernels/test_triton_accepting_draws.py",
            "atom-kernels/tests/triton_kernels/test_triton_sampling.py",
        ),
        f"{_KERNELS}/triton_masks.py": ("atom-kernels/tests/triton_kernels/test_triton_masks.py",),
        f"{_KERNELS}/triton_*.py": ("atom-kernels/tests/triton_kernels/test_triton_sampling.py",),
        f"{_KERNELS}/penalties.py": ("atom-core/tests/test_logits_before_sampling.py", *_OPERATOR_TESTS),
        f"{_KERNELS}/masks.py": (
            "atom-core/tests/test_token_masks.py",
            "atom-kernels/tests/test_operators_parity.py",
            "atom-kernels/tests/triton_kernels/test_triton_masks.py",
        ),
        f"{_KERNELS}/*.py": _OPERATOR_TESTS,
        f"{_WORKER}/sampler.py": _WORKER_TESTS,
        f"{_WORKER}/extras.py": _WORKER_TESTS,
        f"{_WORKER}/logprobs.py": _WORKER_TESTS,
        f"{_WORKER}/token_masks.py": _WORKER_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
