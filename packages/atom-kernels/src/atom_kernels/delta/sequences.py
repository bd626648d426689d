"""What the operators of a delta net read of a step: which rows are whose, and the slot of each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """The rows of one sequence in a step, its slot, how many of its tokens came before, and rows with slots to keep."""

    first: int
    end: int
    slot: int
    context: int
    kept: dict[int, int]


def rows_of_sequences(
    slots_S: torch.Tensor, kept_slots_SJ: torch.Tensor, query_start_loc_S1: torch.Tensor, seq_lens_S: torch.Tensor
) -> Iterator[Rows]:
    """The sequences of a step that have a slot and at least one row, in their order."""
    starts = query_start_loc_S1.tolist()
    columns = (starts[:-1], starts[1:], slots_S.tolist(), kept_slots_SJ.tolist(), seq_lens_S.tolist())
    for first, end, slot, kept_slots, length in zip(*columns, strict=True):
        if slot >= 0 and end > first:
            behind = kept_slots if end - first <= len(kept_slots) else kept_slots[-1:]
            rows = enumerate(behind, end - len(behind))
            kept = {row: kept_slot for row, kept_slot in rows if row >= first and kept_slot >= 0}
            yield Rows(first, end, slot, length - (end - first), kept)
