"""Latent attention over a part of each context as an operator, as it is explained, checked and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.context.cases import make_problem, make_step
from atom_kernels.attention.context.problem import PartialMlaProblem
from atom_kernels.attention.context.reference import partial_latent_attention
from atom_kernels.attention.mla.ops import LATENT_ATTENTION, MIXED
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

# Heads of a rank, kv_lora_rank, nope, rope, v_head_dim, ranks that share a context, and one of them.
_EXAMPLES = {
    "DeepSeek-V3, one of 8 ranks": (16, 512, 128, 64, 128, 8, 0),
    "Kimi-K2, one of 8 ranks": (8, 512, 128, 64, 128, 8, 0),
}
_PARITY_SHAPES = ((5, 48, 24, 16, 20, 2, 1), (4, 32, 16, 8, 12, 4, 3), (8, 128, 64, 32, 64, 2, 0))


def _explained(platform: Platform) -> Iterator[tuple[str, PartialMlaProblem]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, dtype=platform.preferred_dtype)
        yield f"{label}: {shape[0]} heads, latents of {shape[1]} + {shape[3]}", problem


def _parity_steps(platform: Platform) -> Iterator[tuple[PartialMlaProblem, MixerStep]]:
    for dtype in LATENT_ATTENTION.tolerance:
        for index, shape in enumerate(_PARITY_SHAPES):
            problem = make_problem(*shape, dtype=dtype, block_size=(16, 32)[index % 2])
            odd = bool(index % 2)
            yield (
                problem,
                make_step(problem, MIXED, scattered=odd, prologue=index != 2, interleaved=not odd, seed=index),
            )


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, PartialMlaProblem, MixerStep]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, dtype=platform.preferred_dtype)
        yield label, problem, make_step(problem, requests)


def _describe(problem: PartialMlaProblem) -> str:
    return f"{LATENT_ATTENTION.describe(problem)}, rank {problem.rank} of {problem.num_ranks}"


PARTIAL_LATENT_ATTENTION = MixerOperator(
    name=PartialMlaProblem.name,
    contract=partial_latent_attention,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=LATENT_ATTENTION.tolerance,
)
OPS = (PARTIAL_LATENT_ATTENTION,)
