"""What AITER's quantized products have in common: the rules of their problems, their rows, and their backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from atom_kernels.dtypes import unplanned
from atom_kernels.formats import RowRounding, WeightFormat
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

Linear = Callable[[torch.Tensor], torch.Tensor]

HALVES = (torch.bfloat16, torch.float16)
# Bytes at whose multiples AITER's quantizers read.
ALIGNED = 16


def why_not_rounded(
    problem: LinearProblem, platform: Platform, weights: WeightFormat, inputs: WeightFormat
) -> str | None:
    """Why a product of `weights` with rows that are rounded to `inputs` cannot run a problem."""
    if problem.weight_format != weights:
        return f"multiplies weights in {weights.name}, not in {problem.weight_format.name}"
    if problem.input_format != inputs:
        allowed = "not rounded" if problem.input_format is None else f"rounded to {problem.input_format.name}"
        return f"rounds rows to {inputs.name}, and rows of this linear are {allowed}"
    if problem.dtype not in HALVES or problem.result_dtype != problem.dtype:
        return f"takes and gives bfloat16 or float16, not {problem.dtype} to {problem.result_dtype}"
    if platform.batch_invariant:
        return "its kernel, and so a row's sums, are chosen by the number of rows"
    return None


class RowsProduct(NamedTuple):
    """A product of rounded rows.

    Attributes:
        round: contiguous rows ``[T, K]`` with T > 0, at an aligned address -> their codes and scales.
        multiply: these -> ``[T, N]``.
    """

    round: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product of rows that are not rounded yet."""
        return self.multiply(*self.round(aligned(rows)))

    def plus(self, bias: torch.Tensor | None) -> RowsProduct:
        """The same with a bias added to it."""
        if bias is None:
            return self
        return RowsProduct(self.round, lambda codes, scale: self.multiply(codes, scale).add_(bias))


def aligned(rows: torch.Tensor) -> torch.Tensor:
    """The same rows at an address that AITER's quantizers read from."""
    return rows.clone() if rows.data_ptr() % ALIGNED else rows


class RowsLinear:
    """The linear of rows in the problem's dtype by a product that rounds them, of contiguous ``[T, K]`` with T > 0."""

    __slots__ = ("_dtype", "_out_size", "_product", "_size")

    def __init__(self, problem: LinearProblem, product: RowsProduct | Linear) -> None:
        self._size, self._out_size, self._dtype = problem.in_features, problem.out_features, problem.dtype
        self._product: Any = product

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        size = self._size
        if x.dtype is not self._dtype or x.shape[-1] != size:
            raise unplanned("linear", x, size, self._dtype)
        rows = x.reshape(-1, size).contiguous()
        if not rows.shape[0]:
            return x.new_empty((*x.shape[:-1], self._out_size))
        return self._product(rows).view(*x.shape[:-1], self._out_size)

    def of_rounded(self, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The linear of rows ``[T, K]`` that are rounded already, by a `RowsProduct`."""
        if codes.shape[-1] != self._size:
            raise unplanned("linear", codes, self._size, codes.dtype)
        if not codes.shape[0]:
            return codes.new_empty((0, self._out_size), dtype=self._dtype)
        return self._product.multiply(codes, scale)


def rows_backend(
    implementation: str,
    supports: Callable[[LinearProblem, Platform], str | None],
    bind: Callable[[LinearProblem, Any], RowsProduct | Linear],
    layout: WeightLayout,
    row_rounding: RowRounding | None = None,
) -> Backend:
    """The backend of a product. With `row_rounding` neighbors may round its rows: it is a `RowsProduct` then."""
    return Backend(
        name="aiter",
        implementation=implementation,
        supports=supports,
        bind=lambda problem, weights: RowsLinear(problem, bind(problem, weights)),
        layout=layout,
        row_rounding=row_rounding,
    )
