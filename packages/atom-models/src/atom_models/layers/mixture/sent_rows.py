"""`send_rows`: rows go to the owners of their experts by a library, which knows an expert's owner by its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import RowDispatcher
    from atom_models.layers.mixture.placement import SlotsOfIds


def send_rows(
    dispatcher: RowDispatcher,
    rank: int,
    experts: Callable[..., torch.Tensor],
    slots_of: Sequence[SlotsOfIds],
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """The sum of what all ranks' experts make of ``x [T, D]``; each copy of an expert has an id, by its rank and slot.

    The sender's row decides which copy serves, as in `dispatch_rows`. The host waits for the number of rows that come.

    Args:
        rank: this one.
        experts: ``(x, weights, slots, None) -> [T, D]`` runs those of this rank.
        slots_of: what finds the slots of each rank.
    """
    first, own = rank * dispatcher.num_ids, slots_of[rank]
    copies_TK = torch.zeros_like(ids)
    for owner, find in enumerate(slots_of):
        slots_TK = find(ids)
        copies_TK = torch.where(slots_TK < find.num_slots, owner * dispatcher.num_ids + slots_TK, copies_TK)
    x_N, weights_N, copies_N = dispatcher.dispatch(x, weights, copies_TK)
    is_own = (copies_N >= first) & (copies_N < first + own.num_slots)
    slots_N = torch.where(is_own, copies_N - first, own.num_slots)
    parts_N = experts(x_N, weights_N, slots_N, None) if len(x_N) else x_N
    return dispatcher.combine(parts_N, copies_TK)
