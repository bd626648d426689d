"""Latent attention as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.attention.mla.reference import latent_attention
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests
from atom_kernels.operator import Tolerance

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

_TOLERANCES = {"float32": Tolerance(5e-5, 5e-5), "bfloat16": Tolerance(4e-2, 4e-2)}
# One step with everything in it: decodes around the borders of blocks and segments, short queries, chunks of prompts.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 530), (20, 20), (130, 300), (17, 65), (280, 280))
# Heads, kv_lora_rank, nope, rope, v_head_dim.
_EXAMPLES = {
    "DeepSeek-V2-Lite": (16, 512, 128, 64, 128),
    "GLM-4.7-Flash": (20, 512, 192, 64, 256),
}
_PARITY_SHAPES = ((5, 48, 24, 16, 20), (4, 32, 16, 8, 12), (16, 128, 64, 32, 64), (1, 72, 40, 2, 33))
# Its kernels know one size of latents.
_PARITY_SHAPES_OF_AITER = ((16, 512, 128, 64, 128), (20, 512, 192, 64, 256), (128, 512, 128, 64, 128))
# What `explain` shows besides.
_EXPLAINED = {
    **_EXAMPLES,
    "DeepSeek-V3": (128, 512, 128, 64, 128),
    "Kimi-K2, one of 8 ranks": (8, 512, 128, 64, 128),
}


def _explained(platform: Platform) -> Iterator[tuple[str, MlaProblem]]:
    for label, shape in _EXPLAINED.items():
        for kv_cache_dtype in (platform.preferred_dtype, platform.float8):
            problem = make_problem(*shape, platform.preferred_dtype, kv_cache_dtype=kv_cache_dtype)
            latents = f"latents of {shape[1]} + {shape[3]}, cache {kv_cache_dtype}"
            yield f"{label}: {shape[0]} heads, {latents}", problem


def _parity_steps(platform: Platform) -> Iterator[tuple[MlaProblem, MixerStep]]:
    shapes = _PARITY_SHAPES if platform.aiter is None else _PARITY_SHAPES + _PARITY_SHAPES_OF_AITER
    for dtype in _TOLERANCES:
        for index, shape in enumerate(shapes):
            for turn, block_size in enumerate((16, 1, 32)):
                problem = make_problem(*shape, dtype, block_size=block_size)
                odd = bool((index + turn) % 2)
                yield (
                    problem,
                    make_step(problem, MIXED, scattered=odd, prologue=turn != 1, interleaved=not odd, seed=index),
                )


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, MlaProblem, MixerStep]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, platform.preferred_dtype)
        yield label, problem, make_step(problem, requests)


def _describe(problem: MlaProblem) -> str:
    heads = (
        f"{problem.num_heads} heads of {problem.qk_nope_head_dim} + {problem.qk_rope_head_dim}, {problem.v_head_dim}"
    )
    return f"{heads}, latents of {problem.kv_lora_rank}, {problem.dtype}, blocks of {problem.block_size}"


LATENT_ATTENTION = MixerOperator(
    name=MlaProblem.name,
    contract=latent_attention,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=_TOLERANCES,
)
OPS = (LATENT_ATTENTION,)
