"""Gated activations over ``[gate | up]`` halves."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import dynamic_quant, machine
from .checks import (
    check_aligned,
    check_apart,
    check_contiguous,
    check_shape,
    detect_unless,
    refuse_dtype,
    refuse_unless,
)

HALVES = (torch.float16, torch.bfloat16)
# Elements that a thread takes of rows up to so many: all of its row's threads are in one block.
_ELEMENTS_OF_A_THREAD = ((2048, 8), (4096, 16), (6144, 24), (8192, 32))


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
    """``silu(gate) * up``; a limit above zero first clamps the gate from above and `up` on both sides."""
    refuse_unless(limit >= 0, "silu_and_mul: limit must be >= 0")
    gate, up = _halves(out, input)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    out.copy_(F.silu(gate) * up)


def silu_and_mul_quant(
    out: Tensor, input: Tensor, scale: Tensor, group_size: int, limit: float, shuffle_scale: bool
) -> None:
    """The same in fp8, with a scale for each group of a row, group after group if `shuffle_scale`."""
    refuse_dtype("input", input, *HALVES)
    refuse_unless(out.dtype == machine.fp8(), "silu_and_mul_quant: only fp8 and fp4 output types are supported")
    detect_unless(input.shape[-1] % 2 == 0, f"a row of {input.shape[-1]} has no halves")
    width = input.shape[-1] // 2
    refuse_unless(group_size > 0, "silu_and_mul_quant: group_size must be > 0")
    refuse_unless(width % group_size == 0, "silu_and_mul_quant: d must be divisible by group_size")
    refuse_unless(group_size & (group_size - 1) == 0, "silu_and_mul_quant: group_size must be power of 2")
    refuse_unless(width <= 8192, "silu_and_mul_quant: d > 8192 not supported")
    threads = next(taken for longest, taken in _ELEMENTS_OF_A_THREAD if width <= longest)
    detect_unless(group_size % threads == 0, f"threads of {threads} elements share no groups of {group_size}")
    detect_unless(group_size <= 64 * threads, f"groups of {group_size} are wider than a wave")
    check_contiguous("input", input)
    check_aligned("input", input, 16)
    check_apart(out=out, input=input)
    gate, up = input.float().view(-1, 2 * width).split(width, dim=-1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    dynamic_quant.write_rows(out, scale, F.silu(gate) * up, group_size, shuffle_scale)


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
