"""Integers of tensors on the host, and the pages that they name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .checks import check_dtype, detect_unless


def ints(tensor: Tensor) -> list:
    """The values as Python integers: through numpy, so that a test which forbids `.tolist()` sees its subject only."""
    return tensor.detach().numpy().tolist()


def true_everywhere(tensor: Tensor) -> bool:
    """``tensor.all()`` on the host."""
    return bool(tensor.numpy().all())


def check_index(name: str, tensor: Tensor) -> None:
    """The kernel reads int32 words with no holes between them."""
    check_dtype(name, tensor, torch.int32)
    if tensor.dim():
        detect_unless(tensor.numel() == 0 or tensor.stride(-1) == 1, f"{name} has holes between its elements")


def starts_of(name: str, indptr: Tensor, num_rows: int, num_sequences: int | None = None) -> list[int]:
    """Offsets of sequences: they begin at zero, never fall, and end within `num_rows`."""
    check_index(name, indptr)
    starts = ints(indptr)
    wanted = len(starts) - 1 if num_sequences is None else num_sequences
    detect_unless(len(starts) == wanted + 1, f"{name} has {len(starts)} entries for {wanted} sequences")
    detect_unless(starts[0] == 0, f"{name} begins at {starts[0]}")
    detect_unless(all(a <= b for a, b in pairwise(starts)), f"{name} falls: {starts}")
    detect_unless(starts[-1] <= num_rows, f"{name} ends at {starts[-1]}, there are {num_rows} rows")
    return starts


def longest(starts: list[int]) -> int:
    """The most rows of a sequence."""
    return max((b - a for a, b in pairwise(starts)), default=0)


def page_ids(name: str, row: list[int], length: int, page_size: int, num_pages: int) -> list[int]:
    """The pages of a sequence of `length` tokens, all of which exist."""
    count = -(-length // page_size)
    detect_unless(count <= len(row), f"{name}: {length} tokens need {count} pages, the row has {len(row)}")
    ids = row[:count]
    outside = [page for page in ids if not 0 <= page < num_pages]
    detect_unless(not outside, f"{name}: pages {outside} do not exist, there are {num_pages}")
    return ids


def take(cache: Tensor, ids: list[int]) -> Tensor:
    """Some pages of a cache, copied; nothing is computed with the others, whatever they hold."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.element_size()]
    return cache.view(words)[torch.tensor(ids, dtype=torch.int64)].view(cache.dtype)
