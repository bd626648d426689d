"""What adapters add, as an operator: problems and inputs to check it on."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.adapters import native, torch_backend, triton_backend
from atom_kernels.adapters.contract import LowRankProblem, add_low_rank
from atom_kernels.dtypes import FLOATS
from atom_kernels.operator import Op, WeightSpec, Work
from atom_kernels.tolerances import elementwise_tolerance


def _reference(problem: LowRankProblem, weights: Any, *inputs: torch.Tensor) -> None:
    add_low_rank(*inputs, a_NRI=weights["a"], b_NrO=weights["b"], parts=problem.parts)


def _weights(problem: LowRankProblem) -> dict[str, WeightSpec]:
    num, rank = problem.num_places, problem.rank
    return {
        "a": WeightSpec((num, problem.num_rows_of_a, problem.in_features), problem.dtype),
        "b": WeightSpec((num, rank, problem.out_features), problem.dtype),
    }


def _make_inputs(problem: LowRankProblem, num_rows: int, generator: torch.Generator) -> tuple[Any, tuple[Any, ...]]:
    """Tokens in every place, in none, and in one behind the last."""

    def numbers(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(problem.dtype)

    specs = _weights(problem)
    weights = {
        "a": numbers(*specs["a"].shape, scale=problem.in_features**-0.5),
        "b": numbers(*specs["b"].shape, scale=problem.rank**-0.5),
    }
    places = torch.randint(0, problem.num_places + 2, (num_rows,), generator=generator)
    return weights, (numbers(num_rows, problem.out_features), numbers(num_rows, problem.in_features), places)


def _work(problem: LowRankProblem, num_rows: int) -> Work:
    rows, inputs, outputs = problem.num_rows_of_a, problem.in_features, problem.out_features
    elements = min(num_rows, problem.num_places) * (rows * inputs + problem.rank * outputs)
    elements += num_rows * (inputs + 2 * outputs)
    return Work(elements * problem.dtype.itemsize, 2 * num_rows * (rows * inputs + problem.rank * outputs))


ADD_LOW_RANK = Op(
    name="add_low_rank",
    contract=add_low_rank,
    reference=_reference,
    schema="(Tensor(a!) y, Tensor x, Tensor places) -> ()",
    fake=lambda problem, *inputs: None,
    backends=(
        triton_backend.BACKEND,
        native.BACKEND,
        torch_backend.BACKEND,
    ),
    weights=_weights,
    written=(0,),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(
        LowRankProblem(inputs, parts, rank, num_places, dtype)
        for inputs, parts, rank, num_places in (
            (1, (1,), 1, 1),
            (24, (32, 16, 16), 5, 3),
            (2100, (7, 300), 16, 2),
            (64, (528,), 40, 4),
        )
        for dtype in FLOATS
    ),
    # Those of Qwen3-8B; gate and up, and down, of SmolLM2.
    examples=lambda: (
        LowRankProblem(4096, (4096, 1024, 1024), 16, 8, torch.bfloat16),
        LowRankProblem(4096, (12288, 12288), 16, 8, torch.bfloat16),
        LowRankProblem(12288, (4096,), 16, 8, torch.bfloat16),
        LowRankProblem(576, (1536, 1536), 16, 8, torch.float32),
        LowRankProblem(1536, (576,), 16, 8, torch.float32),
    ),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)

OPS = (ADD_LOW_RANK,)
