"""The dtypes of activations, and what is said of those that a backend or a planned kernel does not take."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import torch

# A dtype of torch, or its name.
Dtype = TypeVar("Dtype", torch.dtype, str)

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def why_not_dtype(dtype: Dtype, written_for: Collection[Dtype]) -> str | None:
    """None if a backend that is `written_for` some dtypes takes this one, else the reason."""
    if dtype in written_for:
        return None
    *most, last = (str(known).removeprefix("torch.") for known in written_for)
    return f"written for {', '.join(most)}{' and ' if most else ''}{last}, not {dtype}"


def unplanned(operator: str, x: torch.Tensor, size: int, dtype: torch.dtype) -> TypeError:
    """The error of a kernel that was bound for rows of `size` elements of `dtype`, and was given x."""
    return TypeError(f"{operator} was planned for [..., {size}] {dtype}, got {list(x.shape)} {x.dtype}")
