"""What the linear operators compute, in plain torch. T: tokens, K: input features, N: output features."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LinearProblem:
    """``[T, in_features] -> [T, out_features]``, everything in `dtype`."""

    in_features: int
    out_features: int
    dtype: torch.dtype
    bias: bool = False


@dataclass(frozen=True)
class Int8LinearProblem:
    """As `LinearProblem` with int8 weights and a float32 scale an output channel; `dtype` is that of x and out."""

    in_features: int
    out_features: int
    dtype: torch.dtype
    bias: bool = False


def linear(x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` -> [T, N], summed in float32, rounded once to x's dtype."""
    out = x_TK.float() @ weight_NK.float().t()
    return (out if bias_N is None else out + bias_N.float()).to(x_TK.dtype)


def linear_int8(
    x_TK: torch.Tensor, weight_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ (weight * scale).T + bias`` with int8 weight and float32 scale a channel; activations are not quantized."""
    return linear(x_TK, weight_NK.float() * scale_N.float().unsqueeze(1), bias_N)


def quantize_int8(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each output channel to int8 by its largest magnitude -> (int8 [N, K], float32 scale [N])."""
    scale_N = weight_NK.float().abs().amax(dim=1).clamp(min=1e-12) / 127.0
    return (weight_NK.float() / scale_N.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale_N
