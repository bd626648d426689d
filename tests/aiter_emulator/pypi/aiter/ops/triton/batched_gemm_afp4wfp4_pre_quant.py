"""Batched products of MXFP4 weights in Triton, whose kernel rounds rows; the caller allocates the result."""

import torch

from tests.aiter_emulator.semantics import batched_quantized
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def batched_gemm_afp4wfp4_pre_quant(
    x,
    w,
    w_scales,
    dtype: torch.dtype | None = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
):
    if y is None:
        raise AttributeError("'NoneType' object has no attribute 'shape'")
    return batched_quantized.batched_gemm_a16wfp4(x, w, w_scales, dtype, y, False, None)
