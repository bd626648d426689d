"""Gated activations over ``[gate | up]`` halves."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_apart, check_contiguous, check_shape, refuse_dtype, refuse_unless

ACTIVATED = (torch.float16, torch.bfloat16, torch.float32)


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
    """``silu(gate) * up``; a limit above zero first clamps the gate from above and `up` on both sides."""
    gate, up = _halves(out, input)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    out.copy_(F.silu(gate) * up)


def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """The exact gelu (erf)."""
    _gated(out, input, F.gelu)


def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """The tanh form of gelu."""
    _gated(out, input, lambda gate: F.gelu(gate, approximate="tanh"))


def swiglu_and_mul(out: Tensor, input: Tensor) -> None:
    """GPT-OSS: ``g * sigmoid(1.702 g) * (u + 1)`` with ``g <= 7`` and ``-7 <= u <= 7``; constants of the kernel."""
    gate, up = _halves(out, input)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    out.copy_(gate * torch.sigmoid(1.702 * gate) * (up + 1))


def _gated(out: Tensor, input: Tensor, activation: Callable[[Tensor], Tensor]) -> None:
    gate, up = _halves(out, input)
    out.copy_(activation(gate) * up)


def _halves(out: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
    refuse_dtype("input", input, *ACTIVATED)
    width = input.shape[-1] // 2
    refuse_unless(input.shape[-1] % 2 == 0, f"a row of {input.shape[-1]} has no halves")
    check_shape("out", out, *input.shape[:-1], width)
    refuse_unless(out.dtype == input.dtype, f"out is {out.dtype}, input {input.dtype}")
    check_contiguous("input", input)
    check_contiguous("out", out)
    check_apart("out", out, "input", input)
    gate, up = input.float().split(width, dim=-1)
    return gate, up
