"""Published e4m3 weights as the machine's own e4m3: MI300X has one whose codes stand for half as much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.library import library
from atom_kernels.platform import Platform, detect_platform

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

# Outputs and bytes of the tiles that shuffled weights lie in.
SHUFFLE = (16, 16)
_NEGATIVE_ZERO, _NOT_A_NUMBER = 0x80, 0x7F


def to_machine_float8(
    codes: torch.Tensor, scale: torch.Tensor, platform: Platform
) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn and its scale -> `Platform.float8` and the scale of that, which together are the same numbers.

    A code of e4m3fnuz stands for half of what it does in e4m3fn, so that its scale is twice as large. The code of -0 is
    the only one there that is no number: it becomes 0, and what is no number in e4m3fn becomes it.
    """
    if platform.float8 == "float8_e4m3fn":
        return codes, scale
    data = codes.view(torch.uint8)
    is_number = data & _NOT_A_NUMBER != _NOT_A_NUMBER
    moved = torch.where(data == _NEGATIVE_ZERO, 0, torch.where(is_number, data, _NEGATIVE_ZERO))
    return moved.view(torch.float8_e4m3fnuz), scale * 2.0


def pack(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    """A linear's weights in the machine's float8, row by row."""
    codes, scale = to_machine_float8(weights["weight"], weights["scale"], detect_platform())
    return {"weight": codes.contiguous(), "scale": scale.contiguous(), "bias": weights["bias"]}


def pack_shuffled(problem: LinearProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    """The same in the order of AITER's kernels for shuffled weights."""
    packed = pack(problem, weights)
    return {**packed, "weight": library().bind("shuffle_weight", "x", layout=SHUFFLE)(packed["weight"])}
