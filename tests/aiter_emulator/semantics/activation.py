"""Gated activations over ``[gate | up]`` halves."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import machine
from .checks import check_apart, check_contiguous, check_shape, detect_unless, refuse_dtype, refuse_unless

HALVES = (torch.float16, torch.bfloat16)


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
    """``silu(gate) * up``; a limit above zero first clamps the gate from above and `up` on both sides."""
    refuse_unless(limit >= 0, "silu_and_mul: limit must be >= 0")
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
    git = machine.release() == "git"
    refuse_dtype("input", input, *HALVES, *([torch.float32] if git else []))
    widens = git and input.dtype == torch.float32
    refuse_dtype("out", out, *([*HALVES, torch.float32] if widens else [input.dtype]))
    detect_unless(input.shape[-1] % 2 == 0, f"a row of {input.shape[-1]} has no halves")
    width = input.shape[-1] // 2
    check_shape("out", out, *input.shape[:-1], width)
    check_contiguous("input", input)
    check_contiguous("out", out)
    check_apart(out=out, input=input)
    _check_tail(width, 4 // input.element_size() if git else _vector(width))
    gate, up = input.float().split(width, dim=-1)
    return gate, up


def _check_tail(width: int, step: int) -> None:
    """PyPI stores whole vectors past the end of a row; git stops there, at a multiple of 4 bytes."""
    detect_unless(width % step == 0, f"rows of {width} elements: stores of {step} reach the next row")


def _vector(width: int) -> int:
    return min(8, 1 << max(width // 64 - 1, 0).bit_length())
