"""What the operators of a delta net read of a step: which rows are whose, and the slot of each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """The rows of one sequence in a step, its slot, and how many of its tokens came before."""

    first: int
    end: int
    slot: int
    context: int


def rows_of_sequences(
    slots_S: torch.Tensor, query_start_loc_S1: torch.Tensor, seq_lens_S: torch.Tensor
) -> Iterator[Rows]:
    """The sequences of a step that have a slot and at least one row, in their order."""
    starts = query_start_loc_S1.tolist()
    described = zip(starts[:-1], starts[1:], slots_S.tolist(), seq_lens_S.tolist(), strict=True)
    for first, end, slot, length in described:
        if slot >= 0 and end > first:
            yield Rows(first, end, slot, length - (end - first))
