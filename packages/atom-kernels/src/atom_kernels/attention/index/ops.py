"""A lightning index as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.index.cases import make_problem, make_step
from atom_kernels.attention.index.problem import IndexProblem
from atom_kernels.attention.index.reference import lightning_index
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator
from atom_kernels.mixers.requests import Requests
from atom_kernels.operator import Tolerance

if TYPE_CHECKING:
    from atom_kernels.platform import Platform

# Scores of the cases are exact, so that choices are.
_TOLERANCES = {"float32": Tolerance(0.0, 0.0), "bfloat16": Tolerance(0.0, 0.0)}
# One step with everything in it: decodes around the borders of blocks and of choices, short queries, prompts.
MIXED = ((1, 1), (1, 64), (1, 257), (3, 530), (20, 20), (130, 300), (17, 65), (280, 280))
# Heads, head_dim, rotary_dim, top_k.
_EXAMPLES = {"DeepSeek-V3.2": (64, 128, 64, 2048), "GLM-5": (32, 128, 64, 2048)}
_PARITY_SHAPES = ((5, 32, 16, 64), (1, 16, 4, 7), (32, 128, 64, 128), (12, 48, 48, 600))


def _explained(platform: Platform) -> Iterator[tuple[str, IndexProblem]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, platform.preferred_dtype)
        yield f"{label}: {shape[0]} heads of {shape[1]}, {shape[3]} positions", problem


def _parity_steps(platform: Platform) -> Iterator[tuple[IndexProblem, MixerStep]]:
    for dtype in _TOLERANCES:
        for index, shape in enumerate(_PARITY_SHAPES):
            problem = make_problem(*shape, dtype, block_size=(16, 1, 32)[index % 3])
            odd = bool(index % 2)
            yield problem, make_step(problem, MIXED, scattered=odd, prologue=index != 1, interleaved=odd, seed=index)


def _bench_steps(platform: Platform, requests: Requests) -> Iterator[tuple[str, IndexProblem, MixerStep]]:
    for label, shape in _EXAMPLES.items():
        problem = make_problem(*shape, platform.preferred_dtype)
        yield label, problem, make_step(problem, requests)


def _describe(problem: IndexProblem) -> str:
    heads = f"{problem.num_heads} heads of {problem.head_dim}, {problem.top_k} positions"
    return f"{heads}, {problem.dtype}, blocks of {problem.block_size}"


LIGHTNING_INDEX = MixerOperator(
    name=IndexProblem.name,
    contract=lightning_index,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    tolerance=_TOLERANCES,
)
OPS = (LIGHTNING_INDEX,)
