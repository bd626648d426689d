"""Sums over ranks that are added to a residual, normed, and rounded to float8 as the product behind them reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.aiter.quantized import rounded_all_reduce
from atom_kernels.formats import RowRounding
from atom_kernels.norm import ROUNDED_ADD_RMS_NORM, RMSNormProblem, RoundedNormProblem
from atom_kernels.norm.rounded import rounded_add_rms_norm
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.protocols import SINGLE_RANK, Collectives
from atom_kernels.reduce.contract import all_reduce
from atom_kernels.rounded_rows import dequantized_rows, empty_rows, rounding_tolerance
from atom_kernels.select import select

Summed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RoundedAllReduceNormProblem:
    """A sum over `ranks` that is added to a residual, which is normed and rounded."""

    rounded: RoundedNormProblem
    ranks: Collectives

    @property
    def norm(self) -> RMSNormProblem:
        return self.rounded.norm

    @property
    def rounding(self) -> RowRounding:
        return self.rounded.rounding

    @property
    def hidden_size(self) -> int:
        return self.norm.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype


def all_reduce_rounded_add_rms_norm(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    rounding: RowRounding,
    *,
    ranks: Collectives,
) -> Summed:
    """``rounded_add_rms_norm`` of the sum of all ranks' x, as `all_reduce` rounds it: ``(codes, scales, sum)``.

    The residual is the same on all ranks and stays as it is; x may be overwritten.
    """
    all_reduce(x_TD, ranks)
    return rounded_add_rms_norm(x_TD, residual_TD, weight_D, eps, rounding)


def _reference(
    problem: RoundedAllReduceNormProblem, weights: Any, x_TD: torch.Tensor, residual_TD: torch.Tensor
) -> Summed:
    return all_reduce_rounded_add_rms_norm(
        x_TD.clone(), residual_TD, weights["weight"], problem.norm.eps, problem.rounding, ranks=problem.ranks
    )


def _bind_library_and_norm(problem: RoundedAllReduceNormProblem, weights: Any) -> Callable[..., Summed]:
    add_norm, ranks = select(ROUNDED_ADD_RMS_NORM, problem.rounded).prepare(weights), problem.ranks
    return lambda x, residual: add_norm(ranks.all_reduce(x), residual)


def _make_inputs(problem: RoundedAllReduceNormProblem, num_rows: int, generator: torch.Generator) -> Any:
    return ROUNDED_ADD_RMS_NORM.make_inputs(problem.rounded, num_rows, generator)


def _problems() -> tuple[RoundedAllReduceNormProblem, ...]:
    return tuple(RoundedAllReduceNormProblem(one, SINGLE_RANK) for one in ROUNDED_ADD_RMS_NORM.parity_problems())


def _examples() -> tuple[RoundedAllReduceNormProblem, ...]:
    return tuple(RoundedAllReduceNormProblem(one, SINGLE_RANK) for one in ROUNDED_ADD_RMS_NORM.examples())


ALL_REDUCE_ROUNDED_ADD_RMS_NORM = Op(
    name="all_reduce_rounded_add_rms_norm",
    contract=all_reduce_rounded_add_rms_norm,
    reference=_reference,
    # The ranks' library overwrites x.
    schema="(Tensor(a!) x, Tensor residual) -> (Tensor, Tensor, Tensor)",
    fake=lambda problem, x, residual: (*empty_rows(x, x.shape[1], problem.rounding), torch.empty_like(x)),
    backends=(
        rounded_all_reduce.SUM_ROUNDED_NORM,
        Backend(
            name="torch",
            implementation="all-reduce of the ranks' library, sum, norm and rounding",
            bind=_bind_library_and_norm,
        ),
    ),
    weights=lambda problem: {"weight": WeightSpec((problem.hidden_size,), problem.dtype)},
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=_examples,
    tolerance=lambda problem: rounding_tolerance(),
    work=lambda problem, num_rows: Work(num_rows * problem.hidden_size * (4 * problem.dtype.itemsize + 1)),
    comparable=dequantized_rows,
)
