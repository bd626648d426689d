"""Attention over pages as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.cases import make_problem, make_step
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.attention.reference import paged_attention
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests
from atom_kernels.operator import Tolerance

if TYPE_CHECKING:
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


def _explained(platform: Platform) -> Iterator[tuple[str, AttentionProblem]]:
    for label, (shape, rules) in _EXPLAINED.items():
        for kv_cache_dtype in (platform.preferred_dtype, platform.float8):
            problem = make_problem(*shape, platform.preferred_dtype, kv_cache_dtype=kv_cache_dtype, **rules)
            yield f"{label}: {shape[0]}/{shape[1]} heads of {shape[2]}, cache {problem.kv_cache_dtype}", problem


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, AttentionProblem, MixerStep]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, platform.preferred_dtype)
        yield label, problem, make_step(problem, requests, rotary_dim=shape[2])


# Groups that AITER's assembly has kernels for, rounded up.
_PARITY_SHAPES_OF_AITER = ((16, 2, 128), (12, 1, 128))


def _parity_steps(platform: Platform) -> Iterator[tuple[AttentionProblem, MixerStep]]:
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
        {"sees_ahead": True},
        {"sees_ahead": True, "sliding_window": 37, "soft_cap": 5.0, "block_size": 32},
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
    return ", ".join(rules + ["sinks"] * problem.has_sinks + ["pictures"] * problem.sees_ahead)


PAGED_ATTENTION = MixerOperator(
    name=AttentionProblem.name,
    contract=paged_attention,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=_TOLERANCES,
)
OPS = (PAGED_ATTENTION,)
