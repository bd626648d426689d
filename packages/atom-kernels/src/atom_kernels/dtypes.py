"""The dtypes of activations, and the reason of a backend that does not take one."""

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
    return f"written for {', '.join(most)} and {last}, not {dtype}"
