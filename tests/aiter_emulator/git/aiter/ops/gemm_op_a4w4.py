"""The product of MXFP4 matrices."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import quantized_gemm
from tests.aiter_emulator.semantics.binding import emulated

from ..utility import dtypes


@emulated
def gemm_a4w4(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = dtypes.bf16,
    alpha: float | None = 1.0,
    beta: float | None = 0.0,
    bpreshuffle: bool | None = True,
    apreshuffle: bool | None = False,
    global_A_scale: Tensor | None = None,
    global_B_scale: Tensor | None = None,
) -> Tensor:
    if alpha != 1.0 or beta != 0.0 or apreshuffle or global_A_scale is not None or global_B_scale is not None:
        raise NotImplementedError("the emulator has gemm_a4w4 of MXFP4 alone")
    assert dtype == dtypes.bf16, f"the assembly stores bf16, not {dtype}"
    return quantized_gemm.gemm_a4w4(A, B, A_scale, B_scale, bias, bpreshuffle).to(dtype)
