"""What the gated activations compute, in plain torch. T: tokens, I: intermediate size, 2I: gate and up."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GatedActivationProblem:
    """Attributes:
    intermediate_size: I; inputs are [T, 2I], outputs [T, I].
    dtype: of both.
    approximate: gelu only: "none" (erf) or "tanh".
    alpha, limit: swiglu_oai only.
    """

    intermediate_size: int
    dtype: torch.dtype
    approximate: str = "none"
    alpha: float = 1.702
    limit: float = 7.0


def silu_and_mul(x_T2I: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` where gate is the first half of the last dimension; float32 inside, rounded once.

    Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202.
    """
    gate, up = x_T2I.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x_T2I.dtype)


def gelu_and_mul(x_T2I: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """``gelu(gate) * up`` where gate is the first half; `approximate` is "none" (erf) or "tanh"."""
    gate, up = x_T2I.float().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(x_T2I.dtype)


def swiglu_oai_and_mul(x_T2I: torch.Tensor, *, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    """``gate * sigmoid(alpha * gate) * (up + 1)``, gate clamped from above and up on both sides by `limit`.

    Gate and up are interleaved: even and odd elements of the last dimension.
    OpenAI 2025, gpt-oss reference implementation, https://github.com/openai/gpt-oss (torch/model.py, swiglu).
    """
    x = x_T2I.float()
    gate = x[..., ::2].clamp(max=limit)
    up = x[..., 1::2].clamp(min=-limit, max=limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(x_T2I.dtype)
