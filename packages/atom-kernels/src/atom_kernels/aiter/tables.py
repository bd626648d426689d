"""Small tensors that AITER's kernels want beside ours: rotary tables cut in two, in another dtype, and unit scales.

Each is made once for a table or device, in the first step, and kept as long as its table lives. The values of a table
must not change, and the first call for one must come before a graph is captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

# What was made of each table, by name and dtype.
_made: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def rotary_halves(cos_sin_cache: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[positions, rotary_dim / 2]`` of a table of ours, contiguous, in `dtype`."""

    def cut() -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = cos_sin_cache.chunk(2, dim=-1)
        return cos.to(dtype).contiguous(), sin.to(dtype).contiguous()

    return _kept(cos_sin_cache, ("halves", dtype), cut)


def cos_sin_tables(cos_sin_cache_PR: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of a table of ours, each contiguous ``[P, 1, 1, R/2]`` in `dtype`."""

    def cut() -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rotary_halves(cos_sin_cache_PR, dtype)
        return cos[:, None, None, :], sin[:, None, None, :]

    return _kept(cos_sin_cache_PR, ("tables", dtype), cut)


def rotary_rows(cos_sin_cache: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A table of ours ``[positions, rotary_dim]`` in `dtype`."""
    return _kept(cos_sin_cache, ("rows", dtype), lambda: cos_sin_cache.to(dtype).contiguous())


def _kept(table: torch.Tensor, name: tuple[str, torch.dtype], make: Callable[[], Any]) -> Any:
    of_table = _made.get(table)
    if of_table is None:
        of_table = _made[table] = {}
    if name not in of_table:
        of_table[name] = make()
    return of_table[name]


@functools.cache
def unit_scale(device: torch.device) -> torch.Tensor:
    """Float32 ``[1]`` of one: what is stored is what was given."""
    return torch.ones(1, dtype=torch.float32, device=device)


@functools.cache
def no_rotation(width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[1, width]`` that turn nothing."""
    return torch.ones(1, width, device=device), torch.zeros(1, width, device=device)
