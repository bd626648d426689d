"""AITER's quantizers in HIP: scales from what a row or a block holds, and the orders in which products read them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from . import machine, mx
from .checks import (
    check_aligned,
    check_contiguous,
    check_dtype,
    check_shape,
    detect_unless,
    refuse_dtype,
    refuse_unless,
)
from .quant import largest

_INPUTS = (torch.float16, torch.bfloat16)
# Below it nothing is divided.
_LEAST = 1e-10
# Scales that lie column after column although their strides say otherwise.
_by_column: WeakIdKeyDictionary = WeakIdKeyDictionary()


def per_token(
    x: Tensor, scale: Tensor | None, quant_dtype: torch.dtype, num_rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``(x / scale, float32 scale [..., 1])``."""
    _check(x, scale, quant_dtype, num_rows)
    detect_unless(x.shape[-1] % 8 == 0, f"rows of {x.shape[-1]} elements are no whole vectors of 16 bytes")
    return _divided(x, quant_dtype)


def per_group(
    x: Tensor,
    scale: Tensor | None,
    quant_dtype: torch.dtype,
    group_size: int,
    transpose_scale: bool,
    num_rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """``(x / scale, float32 scale [..., K / group])``, stored column after column if `transpose_scale`."""
    _check(x, scale, quant_dtype, num_rows)
    assert group_size in (32, 64, 128), f"unsupported group size {group_size=}"
    refuse_unless(x.shape[-1] % group_size == 0, f"{x.shape[-1]} columns are no groups of {group_size}")
    detect_unless(quant_dtype != torch.int8 or not transpose_scale, "int8 groups are transposed as if one row were all")
    codes, scales = _divided(x.reshape(-1, group_size), quant_dtype)
    scales = scales.view(*x.shape[:-1], x.shape[-1] // group_size)
    if transpose_scale:
        stored = scales.view(-1, scales.shape[-1]).t().contiguous().view(scales.shape)
        _by_column[stored] = True
        scales = stored
    return codes.view(x.shape), scales


def write_rows(
    out: Tensor, scale: Tensor, values: Tensor, group_size: int, by_column: bool, *, longest: int | None = None
) -> None:
    """What kernels that norm or activate write of float32 `values`: rounded once, with scales of rows or groups."""
    rows, columns = values.shape
    refuse_unless(out.dtype in (machine.fp8(), torch.int8), f" not support output type: {out.dtype}")
    refuse_unless(longest is None or columns <= longest, f" not support n: {columns}")
    check_shape("out", out, rows, columns)
    check_contiguous("out", out)
    detect_unless(columns % 8 == 0, f"rows of {columns} elements are no whole vectors of 16 bytes")
    detect_unless(group_size == 0 or columns % group_size == 0, f"{columns} columns are no groups of {group_size}")
    groups = columns // group_size if group_size else 1
    check_shape("scale", scale, rows, groups)
    check_contiguous("scale", scale)
    check_dtype("scale", scale, torch.float32)
    codes, scales = _divided(values.reshape(rows * groups, -1), out.dtype)
    out.view(torch.uint8).copy_(codes.view(rows, columns).view(torch.uint8))
    scales = scales.view(rows, groups)
    scale.copy_(scales.t().contiguous().view(rows, groups) if by_column else scales)
    if by_column and group_size:
        _by_column[scale] = True


def store_by_column(scale: Tensor) -> None:
    """Remember that a kernel has stored this very tensor column after column."""
    _by_column[scale] = True


def lies_by_column(scale: Tensor) -> bool:
    """Whether a quantizer stored this very tensor so; copies are not known."""
    return scale in _by_column


def per_1x32_fp4(
    x: Tensor, scale: Tensor | None, quant_dtype: torch.dtype, shuffle: bool, num_rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``(two codes a byte [M, K / 2], exponents [M, K / 32])``, the exponents in the products' order if `shuffle`."""
    rows, columns = x.shape
    assert quant_dtype == mx.fp4x2(), f"{quant_dtype} is not fp4x2"
    if scale is not None:
        raise ValueError("unsupported: static per token quant")
    if num_rows is not None:
        raise NotImplementedError("the emulator quantizes all rows")
    refuse_unless(machine.arch() == "gfx950", "device not support Float4_e2m1fn_x2 dtype")
    refuse_dtype("x", x, *_INPUTS)
    refuse_unless(columns % mx.BLOCK == 0, "cols is not divisible by group_size")
    detect_unless(rows == 0 or x.stride(1) == 1, "x has holes between its columns")
    blocks = x.float().view(rows, -1, mx.BLOCK) if x.is_contiguous() else x.float().reshape(rows, -1, mx.BLOCK)
    most = blocks.abs().amax(-1).clamp(min=_LEAST)
    exponent = _rounded_up(most) if machine.release() == "git" else _rounded_by_mantissa(most)
    codes = mx.encode((blocks / torch.exp2(exponent.float()).unsqueeze(-1)).view(rows, columns))
    data = (exponent + 127).clamp(0, 254).to(torch.uint8)
    scales = mx.in_order(data) if shuffle else data
    return codes.view(mx.fp4x2()), scales.view(torch.float8_e8m0fnu)


def _rounded_up(most: Tensor) -> Tensor:
    """git: the least power of two that takes the largest number to 6 at most."""
    return torch.ceil(torch.log2(most.double() / 6)).to(torch.int32)


def _rounded_by_mantissa(most: Tensor) -> Tensor:
    """PyPI: a quarter of the largest number, rounded to a power of two at one and a half."""
    fraction, exponent = torch.frexp(most)
    return exponent - 1 + (fraction >= 0.75).int() - 2


def _divided(x: Tensor, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=_LEAST) / largest(quant_dtype)
    values = (x.float() / scale).clamp(-largest(quant_dtype), largest(quant_dtype))
    # int8 is a cast in C: digits after the point are cut off.
    return values.to(quant_dtype), scale


def _check(x: Tensor, scale: Tensor | None, quant_dtype: torch.dtype, num_rows: Tensor | None) -> None:
    if scale is not None:
        raise ValueError("unsupported: static per token quant")
    if num_rows is not None:
        raise NotImplementedError("the emulator quantizes all rows")
    refuse_unless(x.is_contiguous(), "input.is_contiguous()")
    refuse_dtype("input", x, *_INPUTS)
    refuse_unless(quant_dtype in (machine.fp8(), torch.int8), f"not support output type: {quant_dtype}")
    if x.numel():
        check_aligned("input", x, 16)
