"""MXFP4 linears whose kernel rounds rows to MXFP4 as it reads them, in one launch: sizes that `gemm_a4w4` leaves.

AITER calls it A16W4 for the rows that go in; what it multiplies is A4W4. It has no product that leaves rows alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.linears import Linear, rows_backend, why_not_rounded
from atom_kernels.formats import Mxfp4
from atom_kernels.operator import SOURCE
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

_FUNCTION = "gemm_a16wfp4"
# Inputs of its tiles: past the end of an incomplete one it reads scales that are not there.
_INPUTS = 512


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := why_not_rounded(problem, platform, Mxfp4(), Mxfp4())) is not None:
        return reason
    if platform.arch != "gfx950":
        return f"{_FUNCTION} multiplies MXFP4 on gfx950, not on {platform.arch}"
    if problem.dtype is not torch.bfloat16:
        return f"{_FUNCTION} is called for bfloat16, not for {problem.dtype}"
    if problem.in_features % _INPUTS:
        return f"{_FUNCTION} multiplies whole tiles of {_INPUTS} inputs, not {problem.in_features}"
    return api_of(platform).why_not(_FUNCTION)


def _bind(problem: LinearProblem, weights: Any) -> Linear:
    fixed = {"w": weights["weight"], "w_scales": weights["scale"], "dtype": problem.dtype}
    multiply, bias = library().bind(_FUNCTION, "x", **fixed), weights["bias"]
    return multiply if bias is None else lambda rows: multiply(rows).add_(bias)


BACKEND = rows_backend("AITER gemm_a16wfp4, which rounds rows to MXFP4", _supports, _bind, SOURCE)
