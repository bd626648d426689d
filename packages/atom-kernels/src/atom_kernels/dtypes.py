"""The dtypes of activations, and the reason of a backend that does not take one."""

from __future__ import annotations

from collections.abc import Collection

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def why_not_dtype(dtype: torch.dtype, written_for: Collection[torch.dtype]) -> str | None:
    """None if a backend that is `written_for` some dtypes takes this one, else the reason."""
    if dtype in written_for:
        return None
    *most, last = (str(known).removeprefix("torch.") for known in written_for)
    return f"written for {', '.join(most)} and {last}, not {dtype}"
