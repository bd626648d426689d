"""Rows in float8 that kernels hand on: what they hold, in plain torch, for references of operators that give them."""

from __future__ import annotations

import torch

from atom_kernels.formats import RowRounding
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform


def rounded_rows(x_TK: torch.Tensor, rounding: RowRounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[T, K]`` of the machine's own float8, and float32 scales ``[T, groups]`` as `rounding` has them."""
    size, groups = x_TK.shape[1], rounding.num_groups(x_TK.shape[1])
    codes = getattr(torch, detect_platform().float8)
    largest = torch.finfo(codes).max
    parts = torch.nn.functional.pad(x_TK.float(), (0, -size % groups)).unflatten(1, (groups, -1))
    scale = parts.abs().amax(-1, keepdim=True) / largest
    scale = torch.where(scale == 0, 1.0, scale)
    rows = (parts / scale).clamp(-largest, largest).flatten(1)[:, :size].to(codes)
    scale = scale.squeeze(-1)
    return rows, scale.t().contiguous().view(scale.shape) if rounding.by_column else scale


def dequantized_rows(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The numbers that codes and scales stand for, and what follows these, to be compared. Scales lie row by row."""
    codes, scale, *rest = outputs
    numbers = codes.float().unflatten(1, (scale.shape[1], -1)) * scale.unsqueeze(-1)
    return numbers.flatten(1), *rest


def empty_rows(x: torch.Tensor, size: int, rounding: RowRounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the rows of x ``[T, ...]``, rounded, of `size` numbers each."""
    codes = getattr(torch, detect_platform().float8)
    shape = (x.shape[0], rounding.num_groups(size))
    return x.new_empty((x.shape[0], size), dtype=codes), x.new_empty(shape, dtype=torch.float32)


def rounding_tolerance() -> Tolerance:
    """Two kernels may round a number of about ten to neighboring codes of float8, which are an eighth apart at most."""
    return Tolerance(0.05, 0.13)
