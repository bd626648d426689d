"""Products of a batch of matrices on AITER: what latent attention multiplies its heads with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from atom_kernels.aiter.library import library

if TYPE_CHECKING:
    from atom_kernels.platform import Platform


def why_not_batched_gemm(dtype: torch.dtype, platform: Platform) -> str | None:
    """None if `bind_batched_gemm` can be used, else the reason."""
    if platform.aiter is None:
        return "no AITER"
    if dtype is not torch.bfloat16:
        return f"AITER's batched GEMM is for bfloat16, not {dtype}"
    return platform.aiter.why_not("batched_gemm_bf16_CK")


def bind_batched_gemm() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """``(x [B, M, K], weight [B, N, K]) -> [B, M, N]``, bfloat16, summed in float32; a new tensor.

    x may be a transposed view of ``[M, B, K]``; it is copied then.
    """
    multiply = library().bind("batched_gemm_bf16_CK", "XQ", "WQ")

    def run(x_BMK: torch.Tensor, weight_BNK: torch.Tensor) -> torch.Tensor:
        if x_BMK.shape[1] == 0:
            return x_BMK.new_empty((*x_BMK.shape[:2], weight_BNK.shape[1]))
        return multiply(x_BMK.contiguous(), weight_BNK.contiguous())

    return run
