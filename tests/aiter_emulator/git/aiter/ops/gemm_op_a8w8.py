"""Products of 8 bits."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import quantized_gemm
from tests.aiter_emulator.semantics.binding import emulated

from ..utility import dtypes


@emulated
def gemm_a8w8(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = dtypes.bf16,
    splitK: int | None = None,
) -> Tensor:
    return quantized_gemm.gemm_a8w8(XQ, WQ, x_scale, w_scale, bias, dtype)


@emulated
def gemm_a8w8_bpreshuffle(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = dtypes.bf16,
    check: bool = False,
) -> Tensor:
    return quantized_gemm.gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, bias, dtype)


@emulated
def gemm_a8w8_blockscale(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    dtype: torch.dtype = dtypes.bf16,
    isBpreshuffled: bool = False,
) -> Tensor:
    if isBpreshuffled:
        raise NotImplementedError("the emulator has gemm_a8w8_blockscale_bpreshuffle for shuffled weights")
    return quantized_gemm.gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype, shuffled=False)


@emulated
def gemm_a8w8_blockscale_bpreshuffle(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    dtype: torch.dtype = dtypes.bf16,
    out: Tensor | None = None,
) -> Tensor:
    if out is not None:
        raise NotImplementedError("the emulator allocates the product")
    return quantized_gemm.gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype, shuffled=True)
