"""Attention as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from atom_kernels.attention.cases import bench_requests, describe_requests, make_step
from atom_kernels.attention.plan import BACKENDS, AttentionPlan, UnsupportedAttentionError, select_attention
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.attention.reference import paged_attention
from atom_kernels.cases import BenchCase, ParityCase
from atom_kernels.operator import Tolerance, Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES

if TYPE_CHECKING:
    from atom_kernels.attention.cases import AttentionStep
    from atom_kernels.platform import Platform

_TOLERANCES = {"float32": Tolerance(2e-5, 2e-5), "bfloat16": Tolerance(2e-2, 2e-2)}
# One step with everything in it: decodes around the borders of blocks, tiles and segments, short queries, chunks.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 530), (20, 20), (130, 300), (17, 65))
_EXAMPLES = {
    "SmolLM2-135M": (9, 3, 64),
    "Llama-3-8B": (32, 8, 128),
}
# What `explain` shows besides: heads of one rank, and the rules of its layers.
_EXPLAINED: dict[str, tuple[tuple[int, int, int], dict[str, object]]] = {
    **{label: (shape, {}) for label, shape in _EXAMPLES.items()},
    "Qwen3-235B-A22B, one of 8 ranks": ((8, 1, 128), {}),
    "GLM-4.6, one of 8 ranks": ((12, 1, 128), {}),
    "GPT-OSS-120B": ((64, 8, 64), {"has_sinks": True}),
    "GPT-OSS-120B, layers with a window": ((64, 8, 64), {"has_sinks": True, "sliding_window": 128}),
}


def make_problem(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: str = "float32", **overrides: object
) -> AttentionProblem:
    """A problem with the usual scale, a cache of the same dtype and blocks of 16 tokens, unless overridden."""
    values = {"scale": head_dim**-0.5, "dtype": dtype, "cache_dtype": dtype, "block_size": 16} | overrides
    return AttentionProblem(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, **values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PagedAttentionOperator:
    """One layer's attention with its prologue and cache write, for the command line of kernel developers."""

    name: str = "paged_attention"
    contract = staticmethod(paged_attention)
    reference = staticmethod(paged_attention)

    def explain(self, platform: Platform) -> list[str]:
        lines = []
        for label, (shape, rules) in _EXPLAINED.items():
            for cache_dtype in (platform.preferred_dtype, platform.float8):
                problem = make_problem(*shape, platform.preferred_dtype, cache_dtype=cache_dtype, **rules)
                plan = select_attention(problem, platform)
                lines.append(f"{label}: {shape[0]}/{shape[1]} heads of {shape[2]}, cache {problem.cache_dtype}")
                lines.append(f"  any rows       {plan.backend}   [layout {plan.layout.name}]")
                if plan.kernels:
                    lines.append(f"  kernels        {', '.join(plan.kernels)}")
                lines.extend(f"  passed over    {name}: {reason}" for name, reason in plan.reasons)
        return lines

    def parity_cases(self, platform: Platform) -> Iterator[ParityCase]:
        for problem, step in _parity_steps(platform):
            step = step.to(platform.device)
            reference = select_attention(problem, platform, only_backend="reference")
            for plan in _usable_plans(problem, platform):
                if plan.backend != "reference":
                    yield ParityCase(
                        backend=plan.backend,
                        label=_describe(problem),
                        run=lambda plan=plan, step=step: step.run(plan),
                        expected=lambda plan=reference, step=step: step.run(plan),
                        tolerance=_TOLERANCES[problem.dtype],
                    )

    def bench_cases(self, platform: Platform) -> Iterator[BenchCase]:
        for label, shape in _EXAMPLES.items():
            problem = make_problem(*shape, platform.preferred_dtype)
            plans = _usable_plans(problem, platform)
            baseline = next(plan for plan in plans if plan.backend == "torch")
            for requests in bench_requests(platform.device):
                step = make_step(problem, requests, rotary_dim=shape[2]).to(platform.device)
                for plan in plans:
                    if plan.backend != "reference":
                        yield BenchCase(
                            backend=plan.backend,
                            label=f"{label} {describe_requests(requests)}",
                            run=partial(step.run_in_place, plan, step.cache_for(plan)),
                            baseline=partial(step.run_in_place, baseline, step.kv_cache),
                            work=_work(problem, requests),
                        )


def _usable_plans(problem: AttentionProblem, platform: Platform) -> list[AttentionPlan]:
    plans = []
    for module in BACKENDS:
        try:
            plans.append(select_attention(problem, platform, only_backend=module.NAME))
        except UnsupportedAttentionError:
            continue
    return plans


# Groups that AITER's assembly has kernels for, rounded up.
_PARITY_SHAPES_OF_AITER = ((16, 2, 128), (12, 1, 128))


def _parity_steps(platform: Platform) -> Iterator[tuple[AttentionProblem, AttentionStep]]:
    """Odd shapes, each with other rules, so that every rule meets every dtype, block size and backend."""
    shapes = ((9, 3, 64), (4, 4, 16), (8, 1, 80), (5, 1, 128), (4, 2, 24))
    if platform.aiter is not None:
        shapes += _PARITY_SHAPES_OF_AITER
    rules = (
        {},
        {"sliding_window": 37, "has_sinks": True, "block_size": 1},
        {"soft_cap": 5.0, "block_size": 32},
        {"sliding_window": 300, "soft_cap": 20.0},
        {"has_sinks": True, "block_size": 32},
    )
    for dtype in _TOLERANCES:
        for index, shape in enumerate(shapes):
            for turn, rule in enumerate(rules):
                problem = make_problem(*shape, dtype, **rule)
                rotary_dim = (None, shape[2], 16)[turn % 3]
                yield (
                    problem,
                    make_step(
                        problem,
                        MIXED,
                        scattered=(index + turn) % 2 == 1,
                        rotary_dim=rotary_dim,
                        interleaved=turn % 2 == 1,
                        norms=(index + turn) % 3 == 0,
                        seed=index,
                    ),
                )


def _describe(problem: AttentionProblem) -> str:
    rules = [
        f"{problem.num_heads}/{problem.num_kv_heads} heads of {problem.head_dim}",
        problem.dtype,
        f"blocks of {problem.block_size}",
    ]
    if problem.sliding_window:
        rules.append(f"window {problem.sliding_window}")
    if problem.soft_cap:
        rules.append(f"soft cap {problem.soft_cap}")
    return ", ".join(rules + ["sinks"] * problem.has_sinks)


def _work(problem: AttentionProblem, requests: list[tuple[int, int]]) -> Work:
    """Each key and value read once, queries read and outputs written; two products for every visible key."""
    keys = sum(length for _, length in requests)
    pairs = sum(sum(range(length - queries + 1, length + 1)) for queries, length in requests)
    rows = sum(queries for queries, _ in requests)
    per_token = problem.num_kv_heads * problem.head_dim * DTYPE_BYTES[problem.cache_dtype]
    per_row = problem.num_heads * problem.head_dim * DTYPE_BYTES[problem.dtype]
    flops = 4 * pairs * problem.num_heads * problem.head_dim
    return Work(2 * keys * per_token + 2 * rows * per_row, flops)


OPS = (PagedAttentionOperator(),)
