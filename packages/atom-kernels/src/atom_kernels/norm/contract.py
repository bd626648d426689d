"""What the norms compute, in plain torch.

T: tokens (any leading dimensions will do), D: hidden size, C: columns of a row of which each D are normed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RMSNormProblem:
    """`weight_offset` is added to the weight (Gemma and Qwen3-Next store ``weight - 1``)."""

    hidden_size: int
    dtype: torch.dtype
    eps: float = 1e-6
    weight_offset: float = 0.0


@dataclass(frozen=True)
class GatedRMSNormProblem:
    """Rows have `groups` times `hidden_size` elements, of which each `hidden_size` are normed by themselves."""

    hidden_size: int
    groups: int
    dtype: torch.dtype
    eps: float = 1e-6


@dataclass(frozen=True)
class LayerNormProblem:
    """`weight_offset` is added to the weight (Nemotron stores ``weight - 1``)."""

    hidden_size: int
    dtype: torch.dtype
    eps: float = 1e-5
    bias: bool = True
    weight_offset: float = 0.0


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, *, weight_offset: float = 0.0) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)``, in float32, rounded once to x's dtype.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467.
    """
    x = x_TD.float()
    normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * (weight_D.float() + weight_offset)).to(x_TD.dtype)


def add_rms_norm(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``new_residual = x + residual``, ``normed = rms_norm(new_residual)``; returns ``(normed, new_residual)``.

    The sum is rounded to x's dtype before it is normed, so that what is normed is what is carried on. Inputs stay as
    they are.
    """
    new_residual = x_TD + residual_TD
    return rms_norm(new_residual, weight_D, eps, weight_offset=weight_offset), new_residual


def gated_rms_norm(x_TC: torch.Tensor, gate_TC: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm`` of each D elements of a row by themselves, times ``silu(gate)``.

    The norm is rounded to x's dtype, and its product with the float32 gate once more. C is a multiple of D.

    Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", https://arxiv.org/abs/2412.06464, for where it stands.
    """
    normed = rms_norm(x_TC.unflatten(-1, (-1, len(weight_D))), weight_D, eps)
    return (normed.flatten(-2) * torch.nn.functional.silu(gate_TC.float())).to(x_TC.dtype)


def layer_norm(
    x_TD: torch.Tensor, weight_D: torch.Tensor, bias_D: torch.Tensor | None, eps: float, *, weight_offset: float = 0.0
) -> torch.Tensor:
    """``(x - mean) / sqrt(var + eps) * (weight + weight_offset) + bias``, in float32, rounded once to x's dtype.

    Ba, Kiros and Hinton 2016, "Layer Normalization", https://arxiv.org/abs/1607.06450.
    """
    x = x_TD.float()
    centered = x - x.mean(dim=-1, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + eps)
    normed = normed * (weight_D.float() + weight_offset)
    return (normed if bias_D is None else normed + bias_D.float()).to(x_TD.dtype)
