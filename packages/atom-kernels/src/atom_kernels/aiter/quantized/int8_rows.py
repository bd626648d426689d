"""int8 linears with a scale for each row of the weight and of x: AITER's product, and rows that torch rounds.

AITER's own quantizer converts to int8 by a cast in C, which cuts off what follows the point: twice the error of
rounding, and all of it towards zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.fp8_rows import why_not_loaded
from atom_kernels.aiter.quantized.linears import RowsProduct, rows_backend, why_not_rounded
from atom_kernels.formats import Integers
from atom_kernels.operator import WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

_INT8 = Integers(8)


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    reason = why_not_rounded(problem, platform, _INT8, _INT8) or why_not_loaded(problem)
    return reason or api_of(platform).why_not("gemm_a8w8")


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    bias = weights["bias"]
    return {
        "weight": weights["weight"].contiguous(),
        "scale": weights["scale"].contiguous(),
        "bias": None if bias is None else bias.contiguous(),
    }


def _bind(problem: LinearProblem, weights: Any) -> RowsProduct:
    multiply = library().bind(
        "gemm_a8w8",
        "XQ",
        "x_scale",
        WQ=weights["weight"],
        w_scale=weights["scale"],
        bias=weights["bias"],
        dtype=problem.dtype,
    )

    def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = _INT8.quantize(rows)
        return parts["weight"], parts["scale"]

    return RowsProduct(quantize, multiply)


BACKEND = rows_backend("AITER gemm_a8w8 of rows in int8", _supports, _bind, WeightLayout("aiter_int8_rows", _pack))
