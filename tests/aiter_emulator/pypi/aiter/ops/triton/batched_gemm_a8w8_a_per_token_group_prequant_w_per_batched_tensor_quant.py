"""Batched products of fp8 weights in Triton, whose kernel rounds rows."""

import torch

from tests.aiter_emulator.semantics import batched_quantized
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant(
    X: torch.Tensor,
    WQ: torch.Tensor,
    w_scale: torch.Tensor,
    group_size: int = 128,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
    splitK: int | None = None,
    YQ: torch.Tensor | None = None,
    transpose_bm: bool | None = False,
    transpose_bm_in: bool | None = False,
    config: dict | None = None,
):
    return batched_quantized.batched_gemm_a8w8(
        X, WQ, w_scale, group_size, bias, dtype, splitK, YQ, transpose_bm, transpose_bm_in
    )
