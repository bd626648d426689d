"""Batched products of MXFP4 weights in Triton, whose kernel rounds rows."""

import torch

from tests.aiter_emulator.semantics import batched_quantized
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def batched_gemm_a16wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype | None = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
    transpose_bm: bool | None = False,
    prequant: bool | None = True,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    assert prequant is True, "prequant = False is not yet supported"
    return batched_quantized.batched_gemm_a16wfp4(x, w, w_scales, dtype, y, transpose_bm, y_scale)
