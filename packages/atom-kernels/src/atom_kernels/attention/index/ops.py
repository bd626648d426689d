"""A lightning index as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atom_kernels.attention.index.cases import make_problem, make_step
from atom_kernels.attention.index.problem import IndexProblem
from atom_kernels.attention.index.reference import lightning_index
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.operator import MixerOperator, Requests
from atom_kernels.operator import Tolerance, Work
from atom_kernels.protocols.kv_cache import DTYPE_BYTES

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


def work(problem: IndexProblem, requests: Requests) -> Work:
    """Each key read once, queries read and choices written; a product for each pair where there is a choice."""
    keys = sum(length for _, length in requests if length > problem.top_k)
    rows = sum(queries for queries, _ in requests)
    pairs = sum(sum(range(length - queries + 1, length + 1)) for queries, length in requests if length > problem.top_k)
    elements = keys * problem.head_dim + rows * (problem.num_heads + 1) * (problem.head_dim + 1)
    chosen = sum(min(length, problem.top_k) * queries for queries, length in requests)
    return Work(elements * DTYPE_BYTES[problem.dtype] + 4 * chosen, 2 * pairs * problem.num_heads * problem.head_dim)


LIGHTNING_INDEX = MixerOperator(
    name=IndexProblem.name,
    contract=lightning_index,
    explained=_explained,
    parity_steps=_parity_steps,
    bench_steps=_bench_steps,
    describe=_describe,
    work=work,
    tolerance=_TOLERANCES,
)
OPS = (LIGHTNING_INDEX,)
