"""Batched matrix products in Triton."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import gemm
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def batched_gemm_bf16(
    XQ: Tensor,
    WQ: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
    splitK: int | None = None,
    YQ: Tensor | None = None,
    config: dict | None = None,
):
    return gemm.batched_gemm_bf16_triton(XQ, WQ, bias, dtype, splitK, YQ)
