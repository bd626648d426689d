"""`sample`: the one way in which tokens are drawn, by the fastest backend that this machine has."""

from __future__ import annotations

import torch

from atom_kernels.sampling import native_backend, triton_backend
from atom_kernels.sampling.torch_backend import sample_by_torch


def sample(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row; a row's token depends on nothing but that row.

    Where the temperature is 0 the best token wins, the lowest id among equals. Elsewhere the distribution is
    filtered, each step on what the one before kept: temperature, top-k, top-p, min-p; what ties with a threshold is
    kept. The token is the first, in the order of the vocabulary, at which the cumulative probability exceeds the row's
    uniform number. NaN counts as -inf.

    Args:
        logits_BV: float32.
        uniform_B: float64 in [0, 1), from `philox_uniform`.
        temperature_B: float32, 0 for greedy.
        top_k_B: int64, 0 or less or V or more for all.
        top_p_B: float32, 1 for all.
        min_p_B: float32, the least probability relative to the best token's, 0 for all.

    Returns:
        int64 ``[B]``.
    """
    if logits_BV.device.type == "cpu" and native_backend.unavailable() is None:
        return native_backend.sample_by_native(logits_BV, uniform_B, temperature_B, top_k_B, top_p_B, min_p_B)
    if logits_BV.device.type == "cuda" and triton_backend.unavailable() is None:
        return triton_backend.sample_by_triton(logits_BV, uniform_B, temperature_B, top_k_B, top_p_B, min_p_B)
    return sample_by_torch(logits_BV, uniform_B, temperature_B, top_k_B, top_p_B, min_p_B)
