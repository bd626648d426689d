"""RMSNorm and LayerNorm: float32 inside, rounded once at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_apart, check_contiguous, check_rows, refuse_unless

NORMED = (torch.float16, torch.bfloat16, torch.float32)


def rms_norm(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> Tensor:
    """A new tensor; `use_model_sensitive_rmsnorm=1` rounds before the weight, as T5 does."""
    _check_rows_and_weight(input, weight)
    return _normed(input.float(), weight, epsilon, use_model_sensitive_rmsnorm, False, input.dtype)


def rms_norm_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool,
    use_model_sensitive_rmsnorm: int,
) -> None:
    """Writes ``residual_out = input + residual_in`` and ``out = rms_norm(residual_out)``."""
    _check_rows_and_weight(input, weight)
    for name, tensor in {"out": out, "residual_in": residual_in, "residual_out": residual_out}.items():
        refuse_unless(tensor.dtype == input.dtype, f"{name} is {tensor.dtype}, input {input.dtype}")
        refuse_unless(tensor.is_contiguous(), f"{name} must be contiguous")
        refuse_unless(tensor.shape == input.shape, f"{name} has another shape than input")
    check_apart("out", out, "residual_out", residual_out)
    total = input.float() + residual_in.float()
    residual_out.copy_(total)
    out.copy_(_normed(total, weight, epsilon, use_model_sensitive_rmsnorm, gemma_norm, input.dtype))


def _check_rows_and_weight(input: Tensor, weight: Tensor) -> None:
    refuse_unless(input.dtype in NORMED, f"rmsnorm takes fp16, bf16 and fp32, not {input.dtype}")
    refuse_unless(weight.dtype == input.dtype, f"weight is {weight.dtype}, input {input.dtype}")
    refuse_unless(weight.shape == input.shape[-1:], f"weight {tuple(weight.shape)} for rows of {input.shape[-1]}")
    check_contiguous("weight", weight)
    check_rows("input", input)


def _normed(x: Tensor, weight: Tensor, epsilon: float, rounds_first: int, gemma: bool, dtype: torch.dtype) -> Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    if rounds_first:
        scaled = scaled.to(dtype).float()
    return (scaled * (weight.float() + 1 if gemma else weight.float())).to(dtype)
