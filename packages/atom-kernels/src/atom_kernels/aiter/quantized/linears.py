"""What AITER's quantized products have in common: the rules of their problems, their rows, and a backend of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from atom_kernels.dtypes import unplanned
from atom_kernels.formats import RowRounding, WeightFormat
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import FusedLinearProblem, LinearProblem

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


def on_rows(problem: LinearProblem, product: Linear) -> Linear:
    """The linear of rows in the problem's dtype by a product that rounds them, of contiguous ``[T, K]`` with T > 0."""
    size, out_size, dtype = problem.in_features, problem.weight_rows, problem.dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("linear", x, size, dtype)
        rows = x.reshape(-1, size).contiguous()
        if not rows.shape[0]:
            return x.new_empty((*x.shape[:-1], out_size))
        return product(rows).view(*x.shape[:-1], out_size)

    return run


def on_rounded_rows(
    problem: LinearProblem, product: RowsProduct
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The linear of rows ``[T, K]`` that are rounded already."""

    def run(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if codes.shape[-1] != problem.in_features:
            raise unplanned("linear", codes, problem.in_features, codes.dtype)
        if not codes.shape[0]:
            return codes.new_empty((0, problem.weight_rows), dtype=problem.dtype)
        return product.multiply(codes, scale)

    return run


def backends(
    implementation: str,
    supports: Callable[[LinearProblem, Platform], str | None],
    bind: Callable[[LinearProblem, Any], Linear],
    layout: WeightLayout,
    row_rounding: RowRounding | None = None,
) -> tuple[Backend, Backend]:
    """A product as the backend of a linear alone, and of one between its neighbors.

    With `row_rounding` neighbors may round its rows: it is a `RowsProduct` then.
    """

    def bind_alone(problem: LinearProblem, weights: Any) -> Linear:
        return on_rows(problem, bind(problem, weights))

    def bind_fused(problem: FusedLinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
        from atom_kernels.linear.composed import composed

        product = bind(problem.product, weights)
        rounded = (
            on_rounded_rows(problem.product, product) if row_rounding and isinstance(product, RowsProduct) else None
        )
        return composed(
            problem,
            on_rows(problem.product, product),
            rounded_linear=rounded,
        )

    def supports_fused(problem: FusedLinearProblem, platform: Platform) -> str | None:
        return supports(problem.product, platform)

    alone = Backend(name="aiter", implementation=implementation, supports=supports, bind=bind_alone, layout=layout)
    fused = Backend(
        name="aiter",
        implementation=f"{implementation}, between operators",
        supports=supports_fused,
        bind=bind_fused,
        layout=layout,
        row_rounding=row_rounding,
    )
    return alone, fused
