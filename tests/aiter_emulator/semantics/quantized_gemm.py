"""Products of quantized matrices: rows and tiles of 8 bits, and MXFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine, mx
from .checks import check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .dynamic_quant import lies_by_column
from .shuffle import require_plain, require_shuffled, unshuffled

HALVES = (torch.float16, torch.bfloat16)
TILE = 128
# What Composable Kernel loads and stores at once: 16 bytes of operands, 8 results.
_LOADED, _STORED = 16, 8


def gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """``(XQ @ WQ.T) * x_scale * w_scale + bias``: int8 or fp8, a scale for each row of both."""
    fits = XQ.dtype in (torch.int8, machine.fp8()) and XQ.dtype == WQ.dtype
    refuse_unless(fits, "Weights and activations should both be int8/fp8!")
    refuse_unless(x_scale.dtype == w_scale.dtype, "Scales should have the same dtype!")
    refuse_unless(bias is None or bias.dtype == dtype, "Out amd bias should have the same dtype!")
    refuse_unless(dtype in HALVES, "Unsupported scales/output dtype!")
    _check_operands(XQ, WQ)
    require_plain("WQ", WQ)
    product = _rows_product(XQ, WQ, x_scale, w_scale)
    if bias is not None:
        check_shape("bias", bias, WQ.shape[0])
        check_contiguous("bias", bias)
        product = product + bias.float()
    return product.to(dtype)


def gemm_a8w8_bpreshuffle(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The same of fp8 with a shuffled weight, and without a bias."""
    assert dtype in HALVES, f"Output {dtype=} is currently not supported in gemm_a8w8"
    assert WQ.dtype == machine.fp8(), "gemm_a8w8_bpreshuffle only support fp8 now"
    assert bias is None, "gemm_a8w8_bpreshuffle does not support bias now"
    refuse_unless(XQ.dtype == WQ.dtype, "Weights and activations should have the same dtype!")
    refuse_unless(x_scale.dtype == w_scale.dtype, "Scales should have the same dtype!")
    depth = WQ.shape[1]
    known = depth >= 512 or (depth >= 192 and depth % 64 == 0)
    refuse_unless(known, f"Unsupported K for heuristic dispatch: {depth}")
    _check_operands(XQ, WQ)
    require_shuffled("WQ", WQ)
    return _rows_product(XQ, unshuffled(WQ), x_scale, w_scale).to(dtype)


def gemm_a8w8_blockscale(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, *, shuffled: bool
) -> Tensor:
    """fp8 with a scale for 128 columns of x and for 128 x 128 weights. A shuffled weight wants x's scales by column."""
    assert dtype in HALVES, f"Output {dtype=} is currently not supported in gemm_a8w8"
    refuse_unless(XQ.dtype == WQ.dtype, "Weights and activations should have the same dtype!")
    refuse_unless(x_scale.dtype == w_scale.dtype == torch.float32, "Unsupported scales/output dtype!")
    check_dtype("XQ", XQ, machine.fp8())
    _check_operands(XQ, WQ)
    (num_rows, depth), num_columns = XQ.shape, WQ.shape[0]
    groups = -(-depth // TILE)
    check_shape("x_scale", x_scale, num_rows, groups)
    check_shape("w_scale", w_scale, -(-num_columns // TILE), groups)
    check_contiguous("w_scale", w_scale)
    x_scale = _by_column(x_scale) if shuffled else _by_row(x_scale)
    if shuffled:
        require_shuffled("WQ", WQ)
        WQ = unshuffled(WQ)
    else:
        require_plain("WQ", WQ)
    x = XQ.float() * x_scale.repeat_interleave(TILE, 1)[:, :depth]
    tiles = w_scale.repeat_interleave(TILE, 0)[:num_columns].repeat_interleave(TILE, 1)[:, :depth]
    return (x @ (WQ.float() * tiles).t()).to(dtype)


def gemm_a4w4(
    A: Tensor, B: Tensor, A_scale: Tensor, B_scale: Tensor, bias: Tensor | None, bpreshuffle: bool | None
) -> Tensor:
    """float32 ``[M, N]`` of MXFP4 ``A [M, K / 2]`` and ``B [N, K / 2]``; scales are in the order of their tiles."""
    if machine.arch() == "gfx942":
        raise RuntimeError("A4W4 GEMM kernel is not supported on gfx942, but got gfx942!")
    if bias is not None:
        raise NotImplementedError("the emulator has gemm_a4w4 without a bias")
    if not bpreshuffle:
        raise NotImplementedError("the emulator has gemm_a4w4 of shuffled weights")
    refuse_unless(A.dtype == mx.fp4x2(), f"Unsupported input_type: {A.dtype}")
    detect_unless(B.element_size() == 1, f"B is {B.dtype}, the kernel reads two codes a byte")
    check_shape("B", B, None, A.shape[1])
    (num_rows, half), num_columns = A.shape, B.shape[0]
    refuse_unless(num_columns % TILE == 0, "cannot get heuristic kernel!")
    detect_unless(half % TILE == 0, f"{2 * half} inputs are no whole steps of 256")
    check_contiguous("A", A)
    B = B.view(torch.uint8)
    require_shuffled("B", B)
    columns = 2 * half // mx.BLOCK
    a = mx.decode(A) * mx.spread(mx.read_scales("A_scale", A_scale, num_rows, columns))
    b = mx.decode(unshuffled(B)) * mx.spread(mx.read_scales("B_scale", B_scale, num_columns, columns))
    return a @ b.t()


def gemm_a4w4_into(out: Tensor, product: Tensor) -> Tensor:
    """PyPI: the caller's memory, whose rows are a multiple of 32, gets the product; the other rows are not defined."""
    refuse_unless(out.dtype == torch.bfloat16, "only support BFloat16 output now!")
    detect_unless(out.is_contiguous() and out.shape[1] == product.shape[1], f"out has shape {tuple(out.shape)}")
    assert out.shape[0] % 32 == 0, "Dim0 of gemm_a4w4_asm output needs to be padded to multiples of 32!"
    detect_unless(out.shape[0] >= product.shape[0], f"out has {out.shape[0]} rows, the product {product.shape[0]}")
    out.fill_(torch.nan)
    out[: product.shape[0]] = product.to(out.dtype)
    return out


def _check_operands(XQ: Tensor, WQ: Tensor) -> None:
    check_shape("XQ", XQ, None, None)
    check_shape("WQ", WQ, None, XQ.shape[1])
    check_contiguous("XQ", XQ)
    check_contiguous("WQ", WQ)
    fits = XQ.shape[1] % _LOADED == 0 and WQ.shape[0] % _STORED == 0
    refuse_unless(fits, f"This GEMM is not supported! {WQ.shape[0]} x {XQ.shape[1]}")


def _rows_product(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    for name, scale, rows in (("x_scale", x_scale, XQ.shape[0]), ("w_scale", w_scale, WQ.shape[0])):
        check_dtype(name, scale, torch.float32)
        check_contiguous(name, scale)
        detect_unless(scale.numel() == rows, f"{name} has {scale.numel()} scales, the kernel reads {rows}")
    # Sums of int8 products are exact.
    product = (XQ.double() @ WQ.double().t()).float()
    return product * x_scale.view(-1, 1) * w_scale.view(1, -1)


def _by_column(scale: Tensor) -> Tensor:
    rows, groups = scale.shape
    if lies_by_column(scale):
        return scale.view(-1).view(groups, rows).t()
    same = rows <= 1 or groups <= 1 or scale.stride() == (1, rows)
    detect_unless(same, "x_scale lies row after row, the kernel reads it column after column")
    return scale


def _by_row(scale: Tensor) -> Tensor:
    turned = lies_by_column(scale) and min(scale.shape) > 1
    detect_unless(not turned, "x_scale lies column after column, the kernel reads it row after row")
    check_contiguous("x_scale", scale)
    return scale
