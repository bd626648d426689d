"""Drawing tokens and random numbers by Triton, without a synchronization."""

from __future__ import annotations

import functools

import torch

from atom_kernels.platform import detect_platform

_BLOCK = 8192


@functools.cache
def unavailable() -> str | None:
    """None if the kernels can be used here, else the reason in one line."""
    return detect_platform().why_not("triton")


def sample_by_triton(
    logits_BV: torch.Tensor,
    uniform_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
) -> torch.Tensor:
    """`sample`, in one launch."""
    from atom_kernels.sampling.triton_kernels import sample_kernel

    if logits_BV.stride(1) != 1:
        logits_BV = logits_BV.contiguous()
    num_rows, vocab_size = logits_BV.shape
    tokens_B = torch.empty(num_rows, dtype=torch.int64, device=logits_BV.device)
    block = min(_BLOCK, 1 << max(vocab_size - 1, 1).bit_length())
    if num_rows:
        sample_kernel[(num_rows,)](
            logits_BV,
            logits_BV.stride(0),
            _as(uniform_B, torch.float64),
            _as(temperature_B, torch.float32),
            _as(top_k_B, torch.int64),
            _as(top_p_B, torch.float32),
            _as(min_p_B, torch.float32),
            tokens_B,
            vocab_size,
            BLOCK=block,
            num_warps=16 if block >= 4096 else 4,
        )
    return tokens_B


def philox_by_triton(seed_B: torch.Tensor, sample_index_B: torch.Tensor, position_B: torch.Tensor) -> torch.Tensor:
    """`philox_uniform`, in one launch."""
    from atom_kernels.sampling.triton_kernels import philox_kernel

    seed_B, sample_index_B, position_B = (_as(x, torch.int64) for x in (seed_B, sample_index_B, position_B))
    uniform_B = torch.empty(seed_B.shape, dtype=torch.float64, device=seed_B.device)
    if uniform_B.numel():
        philox_kernel[(-(-uniform_B.numel() // 128),)](
            seed_B, sample_index_B, position_B, uniform_B, uniform_B.numel(), BLOCK=128
        )
    return uniform_B


def _as(x_B: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x_B if x_B.dtype is dtype and x_B.is_contiguous() else x_B.to(dtype).contiguous()
