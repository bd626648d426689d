"""`gather_rows`: every rank gets all rows, and scatters what its experts make of them; shapes follow from counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives


def gather_rows(
    ranks: Collectives,
    counts: Sequence[int],
    experts: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """The sum of what all ranks' experts make of ``x [T, D]``, by an all-gather and a reduce-scatter.

    Both are padded to the most rows that a rank has; the experts do not see the padding.

    Args:
        counts: the rows of each rank.
        experts: runs those of this rank on rows, their weights ``[T, K]`` and their ids ``[T, K]``.
    """
    most = max(counts)

    def gathered(own: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, one after the other."""
        every = ranks.all_gather(_padded(own, [len(own)], most), 0)
        if min(counts) == most:
            return every
        return torch.cat([rows[:count] for rows, count in zip(every.split(most), counts, strict=True)])

    out = experts(gathered(x), gathered(weights), gathered(ids))
    return ranks.reduce_scatter(_padded(out, counts, most))[: len(x)]


def _padded(x: torch.Tensor, counts: Sequence[int], most: int) -> torch.Tensor:
    """Runs of `counts` rows, each followed by zeros up to `most`."""
    if min(counts) == most:
        return x
    out = x.new_zeros(len(counts) * most, *x.shape[1:])
    for into, run in zip(out.split(most), x.split(list(counts)), strict=True):
        into[: len(run)] = run
    return out
