"""Batched matrix products."""

from torch import Tensor

from tests.aiter_emulator.semantics import gemm
from tests.aiter_emulator.semantics.binding import emulated

from ..utility import dtypes


@emulated
def batched_gemm_bf16_CK(
    XQ: Tensor,
    WQ: Tensor,
    bias: Tensor | None = None,
    dtype=dtypes.bf16,
    splitK: int | None = None,
):
    return gemm.batched_gemm_bf16_CK(XQ, WQ, bias, dtype)
