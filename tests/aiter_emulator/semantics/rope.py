"""Rotary embedding: the rotation that all kernels share, and the kernels that rotate in place."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import (
    check_apart,
    check_contiguous,
    check_dtype,
    check_indices,
    check_shape,
    detect_unless,
    refuse_dtype,
    refuse_or_misread,
    refuse_unless,
)

ROTATED = (torch.float16, torch.bfloat16, torch.float32)
NEOX, GPTJ = 0, 1


def rotated(x: Tensor, cos: Tensor, sin: Tensor, neox: bool) -> Tensor:
    """`x` in float32, every element of its last dimension rotated.

    Args:
        x: ``[..., D]``.
        cos, sin: ``[..., D/2]`` (one for each pair) or ``[..., D]`` (one for each element), broadcast against `x`.
        neox: pairs are (i, i + D/2); else (2i, 2i + 1).
    """
    x, cos, sin = x.float(), cos.float(), sin.float()
    if cos.shape[-1] * 2 == x.shape[-1]:
        cos, sin = (torch.cat((t, t), -1) if neox else t.repeat_interleave(2, -1) for t in (cos, sin))
    if neox:
        first, second = x.chunk(2, dim=-1)
        partner = torch.cat((-second, first), dim=-1)
    else:
        partner = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return x * cos + partner * sin


def rotate_in_place(
    tensors: dict[str, Tensor],
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """Rotate ``[s, b, h, d]`` tensors by the rows of ``[max_pos, 1, 1, f]`` tables at ``positions [s, b]``."""
    refuse_unless(rotate_style in (NEOX, GPTJ), f"rotate style {rotate_style}")
    width = _check_tables(tensors, cos, sin, reuse_freqs_front_part)
    refuse_or_misread("positions", positions, torch.int64)
    detect_unless(positions.is_contiguous(), "positions are read as contiguous")
    for name, x in tensors.items():
        check_shape(name, x, *positions.shape, None, None)
        detect_unless(width <= x.shape[-1], f"{name} has {x.shape[-1]} elements, the tables rotate {width}")
        detect_unless(not nope_first or width == x.shape[-1], "nope_first with a part to pass on rotates nothing")
    check_indices("positions", positions, cos.shape[0])
    check_apart(**tensors)
    for x in tensors.values():
        part = x[..., :width]
        part.copy_(rotated(part, cos[positions, 0], sin[positions, 0], rotate_style == NEOX))


def _check_tables(tensors: dict[str, Tensor], cos: Tensor, sin: Tensor, reuse_freqs_front_part: bool) -> int:
    """How many elements the tables rotate."""
    dtypes = {x.dtype for x in tensors.values()}
    for name, x in tensors.items():
        refuse_dtype(name, x, *ROTATED)
    detect_unless(len(dtypes) == 1, f"the tensors have dtypes {dtypes}, the kernel reads one")
    for name, table in {"cos": cos, "sin": sin}.items():
        check_shape(name, table, None, 1, 1, None)
        check_dtype(name, table, *dtypes)
        check_contiguous(name, table)
    check_shape("sin", sin, *cos.shape)
    return cos.shape[-1] * (2 if reuse_freqs_front_part else 1)
