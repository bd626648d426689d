"""Products of many rows with packed weights on a GPU.

Weights of fp8 whose problem lets rows be rounded are multiplied as fp8 by cuBLAS. Others are decoded inside a product
of ours, up to some rows; for more they are made plain for each call, some rows of the weight at a time, so that what is
made plain stays in the L2 cache until it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from atom_kernels.formats import Codes, Float8
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.choice.configs import many_rows_configs
from atom_kernels.linear.triton.packed_weights import packing_of, why_not_packed
from atom_kernels.linear.triton.rounded_rows import may_round, multiplies_fp8, rounded_rows
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.triton.launch import launch

Product = Callable[..., torch.Tensor]
"""``(x, norm_weight=None, eps=0.0, norm_offset=0.0)``: x is normed first where there is a norm."""

# cuBLAS wants both sizes of a weight to be multiples of 16, and rows of x in tiles to be a multiple of four.
_MULTIPLE, _ROWS_MULTIPLE = 16, 4
_TILES = Float8(128, 128)
# Bytes of a weight that are made plain at a time: with rows and results they fit into the L2 cache of an H100.
_PLAIN_BYTES = 32 << 20
# Rows of the weight that are made plain at a time are a multiple of the tiles of products.
_PLAIN_ROWS = 256


def packed_linear(problem: LinearProblem, packed: Any) -> Product:
    """The linear of a problem with weights in `PACKED_LAYOUT`."""
    if _is_for_cublas(problem, detect_platform()):
        if problem.weight_format == Float8():
            return _bind_fp8(problem, packed)
        if problem.weight_format == _TILES and _has_products_of_tiles(problem, packed):
            return _bind_fp8_tiles(problem, packed)
    return _bind_decoded(problem, packed)


def why_not_read(problem: LinearProblem, platform: Platform) -> str | None:
    """Why Triton's kernels cannot read the problem's weights on a GPU."""
    if (reason := why_not_packed(problem)) is not None:
        return reason
    if problem.weight_format.codes is Codes.E4M3 and platform.vendor == "nvidia" and not multiplies_fp8(platform):
        return f"Triton has fp8 from sm_89 on, not on {platform.arch}"
    return None


def norms_while_rounding(problem: LinearProblem, platform: Platform) -> bool:
    """Whether rows are rounded for the product, however many they are: the same kernel norms them."""
    return _is_for_cublas(problem, platform) and problem.weight_format in (Float8(), _TILES)


def _is_for_cublas(problem: LinearProblem, platform: Platform) -> bool:
    is_multiple = problem.in_features % _MULTIPLE == 0 and problem.weight_rows % _MULTIPLE == 0
    return is_multiple and may_round(problem, platform)


def _bind_fp8(problem: LinearProblem, packed: Any) -> Product:
    codes, scale, bias, dtype = packed["codes"].t(), packed["scale"].t(), packed["bias"], problem.dtype

    def run(x: torch.Tensor, *norm: Any) -> torch.Tensor:
        rows, row_scale = rounded_rows(x, *norm)
        # Public in torch but for its name.
        product = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
        return product(rows, codes, row_scale, scale, bias=bias, out_dtype=dtype, use_fast_accum=True)

    return run


def _bind_fp8_tiles(problem: LinearProblem, packed: Any) -> Product:
    """Rows with a scale for each 128 inputs, and the weight for each 128 x 128."""
    codes, bias, dtype = packed["codes"].t(), packed["bias"], problem.dtype
    # cuBLAS reads rows of scales that are a multiple of four.
    groups = packed["scale"].shape[1]
    scale = pad(packed["scale"], (0, -groups % 4))[:, :groups].t()

    def run(x: torch.Tensor, *norm: Any) -> torch.Tensor:
        rows, row_scale = rounded_rows(x, *norm, group=_TILES.columns, multiple=_ROWS_MULTIPLE)
        product = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
        out = product(rows, codes, row_scale, scale, out_dtype=dtype)[: x.shape[0]]
        return out if bias is None else out + bias

    return run


def _has_products_of_tiles(problem: LinearProblem, packed: Any) -> bool:
    """Whether torch multiplies tiles here: from CUDA 12.9 on, on Hopper, and whole ones."""
    if problem.in_features % 128 or problem.weight_rows % 128 or not packed["codes"].is_cuda:
        return False
    x = torch.zeros(1, problem.in_features, dtype=problem.dtype, device=packed["codes"].device)
    try:
        _bind_fp8_tiles(problem, packed)(x)
    except RuntimeError:
        return False
    return True


def _bind_decoded(problem: LinearProblem, packed: Any) -> Product:
    """Decoded inside the product up to some rows, and made plain for more."""
    from atom_kernels.norm.triton_backend import rms_norm_by_triton

    configs = many_rows_configs(problem, detect_platform())
    inside = {rows: SkinnyLinear(problem, packed, config, rows) for rows, config in configs.items()}
    plain = _bind_made_plain(problem, packed)
    most = max(inside, default=0)

    def run(x: torch.Tensor, *norm: Any) -> torch.Tensor:
        num_rows = x.shape[0]
        if num_rows > most:
            return plain(rms_norm_by_triton(x, *norm) if norm else x)
        product = inside[next(limit for limit in inside if num_rows <= limit)]
        return product(x, *norm)

    return run


def _bind_made_plain(problem: LinearProblem, packed: Any) -> Product:
    """The weight some rows at a time, each piece multiplied before the next one takes its place in the cache."""
    pieces = _pieces(problem, packed)
    bias = packed["bias"]

    def run(x: torch.Tensor) -> torch.Tensor:
        if len(pieces) == 1:
            return torch.nn.functional.linear(x, made_plain(problem, packed), bias).to(problem.result_dtype)
        out = x.new_empty(x.shape[0], problem.weight_rows)
        for rows, piece, tensors in pieces:
            torch.mm(x, made_plain(piece, tensors).t(), out=out[:, rows])
        return (out if bias is None else out.add_(bias)).to(problem.result_dtype)

    return run


def _pieces(problem: LinearProblem, packed: Any) -> list[tuple[slice, LinearProblem, dict[str, Any]]]:
    """Some rows of the weight each: which, as a problem, and its tensors."""
    step = _PLAIN_BYTES // (problem.in_features * problem.dtype.itemsize) // _PLAIN_ROWS * _PLAIN_ROWS or _PLAIN_ROWS
    group_rows = packing_of(problem.weight_format, problem.in_features).group_rows
    pieces = []
    for first in range(0, problem.weight_rows, step):
        last = min(first + step, problem.weight_rows)
        scales = slice(first // group_rows, -(-last // group_rows))
        tensors = {name: _rows(packed[name], scales) for name in ("scale", "minimum")}
        tensors["codes"] = packed["codes"][first:last]
        pieces.append((slice(first, last), replace(problem, out_features=last - first), tensors))
    return pieces


def _rows(tensor: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    return None if tensor is None else tensor[rows]


def made_plain(problem: LinearProblem, packed: Any) -> torch.Tensor:
    """The weight [N, K] in the problem's dtype."""
    from atom_kernels.linear.triton.convert import NUM_ROWS, make_plain_kernel

    rows, columns = problem.weight_rows, problem.in_features
    packing = packing_of(problem.weight_format, columns)
    codes = packed["codes"]
    out = torch.empty(rows, columns, dtype=problem.dtype, device=codes.device)
    tiles = -(-columns // 128)
    launch(
        make_plain_kernel, (-(-rows // NUM_ROWS.value), tiles), codes, packed["scale"], packed["minimum"], out,
        K=columns, ROWS=rows, **packing.constants(),
    )  # fmt: skip
    return out
