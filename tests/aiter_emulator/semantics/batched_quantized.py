"""Batched products in Triton whose weights are quantized, and whose kernels round rows as they read them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine, mx
from .checks import check_dtype, check_shape, detect_unless
from .mxfp4_rows import rounded_product
from .shuffle import require_plain

HALVES = (torch.float16, torch.bfloat16)
_LEAST = 1e-10


def batched_gemm_a8w8(
    X: Tensor,
    WQ: Tensor,
    w_scale: Tensor,
    group_size: int,
    bias: Tensor | None,
    dtype: torch.dtype | None,
    splitK: int | None,
    YQ: Tensor | None,
    transpose_bm: bool | None,
    transpose_bm_in: bool | None,
) -> Tensor:
    """``[B, M, K] x [B, N, K] -> [B, M, N]``, or with both first dimensions turned, of x, of the result or of both.

    Each `group_size` numbers of a row of X are rounded to WQ's dtype over a scale of their own; all of WQ has one.
    """
    x = X.transpose(0, 1) if transpose_bm_in else X
    assert x.shape[0] == WQ.shape[0], "Incompatible Batch dimensions!!!"
    assert x.shape[2] == WQ.shape[2], "Incompatible K dimensions!!!"
    assert group_size.bit_count() == 1, "group_size mush be power of 2"
    assert dtype in HALVES, f"Output {dtype=} is currently not supported in batched_gemm_a8w8"
    assert splitK is None, "Currently, there isn't any support for splitK on Triton"
    if WQ.dtype == torch.int8:
        raise NotImplementedError("the emulator has this product of fp8 weights")
    # Kernels of the other architecture's fp8 would decode it number by number.
    check_dtype("WQ", WQ, machine.fp8())
    require_plain("WQ", WQ)
    detect_unless(w_scale.numel() == 1, f"w_scale has {w_scale.numel()} scales, the kernel reads the first")
    product = torch.zeros(*x.shape[:2], WQ.shape[1])
    for first in range(0, x.shape[2], group_size):
        columns = slice(first, first + group_size)
        codes, scale = _rounded(x[..., columns], WQ.dtype)
        product += torch.bmm(codes.float(), WQ[..., columns].float().transpose(1, 2)) * scale
    product = product * w_scale.float()
    if bias is not None:
        check_shape("bias", bias, x.shape[0], 1, WQ.shape[1])
        detect_unless(bias.stride(-1) == 1, "bias has columns that lie apart, the kernel reads them one after another")
        product = product.to(bias.dtype) + bias
    return _stored(product, dtype, YQ, transpose_bm)


def batched_gemm_a16wfp4(
    x: Tensor,
    w: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None,
    y: Tensor | None,
    transpose_bm: bool | None,
    y_scale: Tensor | None,
) -> Tensor:
    """``[B, M, K] x [B, N, K / 2] -> [B, M, N]``, or ``[M, B, N]``: MXFP4 weights, and rows that become MXFP4."""
    assert machine.arch() == "gfx950", "MXFP4 is not available on your device"
    if y_scale is not None:
        raise NotImplementedError("the emulator has this product without a scale of the result")
    assert x.shape[0] == w.shape[0], "batches"
    size = 2 * w.shape[2]
    check_shape("x", x, None, None, size)
    # The kernel masks what lies past an incomplete tile by the number of bytes, not of numbers.
    detect_unless(size >= mx.BLOCK and size & (size - 1) == 0, f"of {size} inputs the kernel reads the first half")
    return _stored(rounded_product(x, w, w_scales), dtype or torch.bfloat16, y, transpose_bm)


def _rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    largest = torch.finfo(dtype).max
    most = x.float().abs().amax(-1, keepdim=True)
    # The least size is a number of x's dtype to the kernel, and 0 in float16.
    detect_unless(x.dtype != torch.float16 or bool((most > 0).all()), "a group of zeros in float16 is divided by 0")
    scale = most.clamp(min=_LEAST) * torch.tensor(1.0 / largest)
    return (x.float() * (1.0 / scale)).clamp(-largest, largest).to(dtype), scale


def _stored(product: Tensor, dtype: torch.dtype | None, out: Tensor | None, turned: bool | None) -> Tensor:
    product = product.transpose(0, 1) if turned else product
    if out is None:
        return product.contiguous().to(dtype)
    assert out.shape == product.shape, f"Output dimension error {tuple(out.shape)}"
    return out.copy_(product)
