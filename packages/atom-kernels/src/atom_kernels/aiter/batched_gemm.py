"""Batched matrix products on AITER, by which latent attention multiplies its heads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom_kernels.aiter.library import library


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
