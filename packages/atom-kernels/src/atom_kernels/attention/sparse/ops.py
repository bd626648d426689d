"""Sparse latent attention as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.mla.ops import LATENT_ATTENTION, MIXED
from atom_kernels.attention.sparse.cases import make_problem, make_step
from atom_kernels.attention.sparse.problem import SparseMlaProblem
from atom_kernels.attention.sparse.reference import sparse_latent_attention
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

# Heads, kv_lora_rank, nope, rope, v_head_dim, top_k.
_EXAMPLES = {
    "DeepSeek-V3.2": (128, 512, 128, 64, 128, 2048),
    "DeepSeek-V3.2, one of 8 ranks": (16, 512, 128, 64, 128, 2048),
    "GLM-5": (64, 512, 192, 64, 256, 2048),
}
_PARITY_SHAPES = ((5, 48, 24, 16, 20, 64), (4, 32, 16, 8, 12, 7), (16, 128, 64, 32, 64, 128), (1, 72, 40, 2, 34, 600))


def _explained(platform: Platform) -> Iterator[tuple[str, SparseMlaProblem]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, dtype=platform.preferred_dtype)
        yield f"{label}: {shape[0]} heads, {shape[5]} latents of {shape[1]} + {shape[3]}", problem


def _parity_steps(platform: Platform) -> Iterator[tuple[SparseMlaProblem, MixerStep]]:
    for dtype in LATENT_ATTENTION.tolerance:
        for index, shape in enumerate(_PARITY_SHAPES):
            problem = make_problem(*shape, dtype=dtype, block_size=(16, 1, 32)[index % 3])
            odd = bool(index % 2)
            yield (
                problem,
                make_step(problem, MIXED, scattered=odd, prologue=index != 1, interleaved=not odd, seed=index),
            )


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, SparseMlaProblem, MixerStep]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, dtype=platform.preferred_dtype)
        yield label, problem, make_step(problem, requests)


def _describe(problem: SparseMlaProblem) -> str:
    return f"{LATENT_ATTENTION.describe(problem)}, {problem.top_k} positions"


SPARSE_LATENT_ATTENTION = MixerOperator(
    name=SparseMlaProblem.name,
    contract=sparse_latent_attention,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=LATENT_ATTENTION.tolerance,
)
OPS = (SPARSE_LATENT_ATTENTION,)
