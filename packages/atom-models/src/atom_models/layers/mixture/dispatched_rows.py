"""`dispatch_rows`: each row goes to the ranks that own one of its experts, once to each, and their parts come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import UnevenCollectives
    from atom_models.layers.mixture.placement import SlotsOfIds


def dispatch_rows(
    ranks: UnevenCollectives,
    experts: Callable[..., torch.Tensor],
    slots_of: Sequence[SlotsOfIds],
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """The sum of what all ranks' experts make of ``x [T, D]``, by one all-to-all there and one back.

    Whoever sends a row says which slots serve it: where an expert has several copies, its own number of the row
    decides. Parts are added in float32, in the order of the ranks. How many rows arrive only the senders know, so that
    the host waits for these numbers, and no graph can hold it.

    Args:
        experts: ``(x, weights, slots, None) -> [T, D]`` runs those of this rank.
        slots_of: what finds the slots of each rank.
    """
    slots_RTK = torch.stack([find(ids) for find in slots_of])
    held_RTK = torch.stack([slots < find.num_slots for slots, find in zip(slots_RTK, slots_of, strict=True)])
    rank_S, row_S = held_RTK.any(-1).nonzero(as_tuple=True)  # by the rank, so that each gets one run
    give = torch.bincount(rank_S, minlength=ranks.size)
    given, taken = torch.stack([give, ranks.all_to_all(give, *[[1] * ranks.size] * 2)]).tolist()

    x_N = ranks.all_to_all(x[row_S], given, taken)
    # Both are 4 bytes wide, and travel as one.
    choice_S = torch.cat([weights[row_S], slots_RTK[rank_S, row_S].view(weights.dtype)], 1)
    weights_N, slots_N = ranks.all_to_all(choice_S, given, taken).chunk(2, 1)
    out_N = x_N
    if len(x_N):
        out_N = experts(x_N, weights_N.contiguous(), slots_N.contiguous().view(slots_RTK.dtype), None)
    return _summed(ranks.all_to_all(out_N, taken, given), row_S, given, len(x))


def _summed(parts_SD: torch.Tensor, row_S: torch.Tensor, given: list[int], num_rows: int) -> torch.Tensor:
    """The sum of each row's parts. A run has no row twice, so that the order of additions is the same each time."""
    out_TD = parts_SD.new_zeros(num_rows, parts_SD.shape[1], dtype=torch.float32)
    for parts, rows in zip(parts_SD.split(given), row_S.split(given), strict=True):
        out_TD.index_add_(0, rows, parts.float())
    return out_TD.to(parts_SD.dtype)
