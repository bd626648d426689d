"""Products of many rows with packed weights on a GPU.

Weights of fp8 whose problem lets rows be rounded are multiplied as fp8; others are made plain for each call, which
pays where a product takes longer than writing its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.formats import Codes, Float8
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_weights import packing_of, why_not_packed
from atom_kernels.linear.triton.rounded_rows import rounded_rows
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.triton.launch import launch

# What the products of cuBLAS want of both sizes.
_MULTIPLE = 16


def packed_linear(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The linear of a problem with weights in `PACKED_LAYOUT`."""
    if _is_fp8_product(problem):
        return _bind_fp8(problem, packed)
    return _bind_made_plain(problem, packed)


def multiplies_fp8(platform: Platform) -> bool:
    """Whether a GPU computes with fp8: NVIDIA's from sm_89 on."""
    return platform.vendor == "nvidia" and int(platform.arch.removeprefix("sm_")) >= 89


def why_not_read(problem: LinearProblem, platform: Platform) -> str | None:
    """Why Triton's kernels cannot read the problem's weights on a GPU."""
    if (reason := why_not_packed(problem)) is not None:
        return reason
    if problem.held.codes is Codes.E4M3 and platform.vendor == "nvidia" and not multiplies_fp8(platform):
        return f"Triton has fp8 from sm_89 on, not on {platform.arch}"
    return None


def _is_fp8_product(problem: LinearProblem) -> bool:
    if problem.weight_format != Float8() or problem.input_format != Float8() or problem.dtype is not torch.bfloat16:
        return False
    if problem.in_features % _MULTIPLE or problem.weight_rows % _MULTIPLE:
        return False
    return multiplies_fp8(detect_platform())


def _bind_fp8(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    codes, scale, bias, dtype = packed["codes"].t(), packed["scale"].t(), packed["bias"], problem.dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        rows, row_scale = rounded_rows(x)
        # Public in torch but for its name.
        product = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
        return product(rows, codes, row_scale, scale, bias=bias, out_dtype=dtype, use_fast_accum=True)

    return run


def _bind_made_plain(problem: LinearProblem, packed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    bias, function = packed["bias"], torch.nn.functional.linear

    def run(x: torch.Tensor) -> torch.Tensor:
        return function(x, made_plain(problem, packed), bias)

    return run


def made_plain(problem: LinearProblem, packed: Any) -> torch.Tensor:
    """The weight [N, K] in the problem's dtype."""
    from atom_kernels.linear.triton.convert import NUM_ROWS, make_plain_kernel

    rows, columns = problem.weight_rows, problem.in_features
    packing = packing_of(problem.held, columns)
    codes = packed["codes"]
    out = torch.empty(rows, columns, dtype=problem.dtype, device=codes.device)
    tiles = -(-columns // 128)
    launch(
        make_plain_kernel, (-(-rows // NUM_ROWS.value), tiles), codes, packed["scale"], packed["minimum"], out,
        K=columns, ROWS=rows, **packing.constants(),
    )  # fmt: skip
    return out
