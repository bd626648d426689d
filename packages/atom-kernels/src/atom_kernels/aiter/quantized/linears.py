"""What AITER's quantized products have in common: the rules of their problems, their rows, and a backend of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.dtypes import unplanned
from atom_kernels.formats import WeightFormat
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


def on_rows(problem: LinearProblem, product: Linear) -> Linear:
    """The linear whose `product` takes contiguous rows ``[T, K]`` with T > 0 at an aligned address."""
    size, out_size, dtype = problem.in_features, problem.weight_rows, problem.dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("linear", x, size, dtype)
        rows = x.reshape(-1, size).contiguous()
        if not rows.shape[0]:
            return x.new_empty((*x.shape[:-1], out_size))
        if rows.data_ptr() % ALIGNED:
            rows = rows.clone()
        return product(rows).view(*x.shape[:-1], out_size)

    return run


def backends(
    implementation: str,
    supports: Callable[[LinearProblem, Platform], str | None],
    bind: Callable[[LinearProblem, Any], Linear],
    layout: WeightLayout,
) -> tuple[Backend, Backend]:
    """A product as the backend of a linear alone, and of one between its neighbors."""

    def bind_fused(problem: FusedLinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
        from atom_kernels.linear.composed import composed
        from atom_kernels.norm import rms_norm

        return composed(
            problem,
            bind(problem.product, weights),
            lambda x, weight, eps, offset: rms_norm(x, weight, eps, weight_offset=offset),
        )

    def supports_fused(problem: FusedLinearProblem, platform: Platform) -> str | None:
        return supports(problem.product, platform)

    alone = Backend(name="aiter", implementation=implementation, supports=supports, bind=bind, layout=layout)
    between = f"{implementation}, between operators"
    fused = Backend(name="aiter", implementation=between, supports=supports_fused, bind=bind_fused, layout=layout)
    return alone, fused
