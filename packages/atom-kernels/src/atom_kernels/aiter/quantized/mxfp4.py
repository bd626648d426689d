"""MXFP4 linears whose rows are rounded to MXFP4 too (A4W4), which MI355X multiplies.

The scales of rows are rounded to powers of two as each release of AITER does it, not as a weight's publisher did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.linears import RowsProduct, rows_backend, why_not_rounded
from atom_kernels.formats import Mxfp4
from atom_kernels.operator import WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

_SHUFFLE = (16, 16)
# Outputs of the assembly's narrowest tile, and inputs of its step.
_OUTPUTS, _INPUTS = 128, 256
# Tiles of scales, and rows of a result that its caller allocates.
_SCALE_ROWS, _OUT_ROWS = 256, 32
_BLOCK = 32
_FUNCTIONS = ("gemm_a4w4", "per_1x32_f4_quant_hip", "e8m0_shuffle", "shuffle_weight")


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := why_not_rounded(problem, platform, Mxfp4(), Mxfp4())) is not None:
        return reason
    if platform.arch != "gfx950":
        return f"MXFP4 is multiplied on gfx950, not on {platform.arch}"
    if problem.dtype is not torch.bfloat16:
        return f"gives bfloat16, not {problem.dtype}"
    inputs, outputs = problem.in_features, problem.weight_rows
    if inputs % _INPUTS or outputs % _OUTPUTS:
        return f"multiplies tiles of {_OUTPUTS} outputs and {_INPUTS} inputs, which {outputs} x {inputs} do not fill"
    api = api_of(platform)
    return next((reason for name in _FUNCTIONS if (reason := api.why_not(name)) is not None), None)


def _pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    shuffle, order = library().bind("shuffle_weight", "x", layout=_SHUFFLE), library().bind("e8m0_shuffle", "scale")
    scale = pad(weights["scale"], (0, 0, 0, -problem.weight_rows % _SCALE_ROWS))
    return {"weight": shuffle(weights["weight"]), "scale": order(scale), "bias": weights["bias"]}


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    """Scales are filled up to whole tiles."""
    return source_bytes + -problem.weight_rows % _SCALE_ROWS * (problem.in_features // _BLOCK)


def _bind(problem: LinearProblem, weights: Any) -> RowsProduct:
    aiter, num_outputs = library(), problem.weight_rows
    codes: torch.dtype = aiter.package.dtypes.fp4x2
    quantize = aiter.bind("per_1x32_f4_quant_hip", "x", quant_dtype=codes, shuffle=True)
    fixed = {"B": weights["weight"], "B_scale": weights["scale"], "bpreshuffle": True}
    if aiter.api.has("gemm_a4w4", "out"):
        into = aiter.bind("gemm_a4w4", "A", "A_scale", "out", **fixed)

        def multiply(a: torch.Tensor, a_scale: torch.Tensor) -> torch.Tensor:
            num_rows = a.shape[0]
            filled_rows = num_rows + -num_rows % _OUT_ROWS
            out = torch.empty(filled_rows, num_outputs, dtype=torch.bfloat16, device=a.device)
            into(a, a_scale, out)
            return out[:num_rows]
    else:
        multiply = aiter.bind("gemm_a4w4", "A", "A_scale", dtype=torch.bfloat16, **fixed)

    return RowsProduct(quantize, multiply).plus(weights["bias"])


BACKEND = rows_backend(
    "AITER gemm_a4w4 of rows in MXFP4", _supports, _bind, WeightLayout("aiter_mxfp4_16x16", _pack, _num_bytes)
)
