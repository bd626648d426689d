"""The product of MXFP4 matrices."""

from torch import Tensor

from tests.aiter_emulator.semantics import quantized_gemm
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def gemm_a4w4(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    alpha: float | None = 1.0,
    beta: float | None = 0.0,
    bpreshuffle: bool | None = True,
) -> Tensor:
    if alpha != 1.0 or beta != 0.0:
        raise NotImplementedError("the emulator has gemm_a4w4 without a sum")
    product = quantized_gemm.gemm_a4w4(A, B, A_scale, B_scale, bias, bpreshuffle)
    return quantized_gemm.gemm_a4w4_into(out, product)
