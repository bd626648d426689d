"""`RowExchange`: rows of several engines, each with requests of its own, meet the experts that are spread over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives

_rows_of_engines: ContextVar[Sequence[int]] = ContextVar("rows_of_engines", default=())


@contextmanager
def rows_of_engines(counts: Sequence[int]) -> Iterator[None]:
    """For the step that this thread runs: how many rows each engine has, by its number; all of them run it.

    Outside of it, or where nothing is told, mixtures exchange nothing, and take this engine's rows for those of every
    engine: the output then means nothing, and takes the time and memory of a real step.
    """
    before = _rows_of_engines.set(counts)
    try:
        yield
    finally:
        _rows_of_engines.reset(before)


class RowExchange:
    """``exchange(experts, x [T, D], weights [T, K], ids [T, K]) -> [T, D]``: the sum of what all ranks' experts give.

    Every rank gets all rows with an all-gather, runs its own experts on them, and a reduce-scatter gives the rows back.
    Both are padded to the most rows that an engine has; the experts do not see the padding.

    Args:
        ranks: one of each engine; they call it in the same steps, in the same order.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks = ranks

    def __call__(
        self, experts: Callable[..., torch.Tensor], x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        counts = _rows_of_engines.get()
        if not counts:
            copies = self._ranks.size
            return experts(x.repeat(copies, 1), weights.repeat(copies, 1), ids.repeat(copies, 1))[: len(x)]
        if counts[self._ranks.rank] != len(x):
            raise RuntimeError(f"the engines agreed on {list(counts)} rows, and this one has {len(x)}")
        most = max(counts)
        out = experts(*(self._gathered(one, counts, most) for one in (x, weights, ids)))
        return self._ranks.reduce_scatter(_padded(out, counts, most))[: len(x)]

    def _gathered(self, own: torch.Tensor, counts: Sequence[int], most: int) -> torch.Tensor:
        """The rows of all engines, one after the other."""
        every = self._ranks.all_gather(_padded(own, [len(own)], most), 0)
        if min(counts) == most:
            return every
        return torch.cat([rows[:count] for rows, count in zip(every.split(most), counts, strict=True)])


def _padded(x: torch.Tensor, counts: Sequence[int], most: int) -> torch.Tensor:
    """Runs of `counts` rows, each followed by zeros up to `most`."""
    if min(counts) == most:
        return x
    out = x.new_zeros(len(counts) * most, *x.shape[1:])
    for into, run in zip(out.split(most), x.split(list(counts)), strict=True):
        into[: len(run)] = run
    return out


def take_part(model: nn.Module) -> None:
    """Run the experts of every mixture on the rows of other engines, in a step to which this engine has none."""
    from atom_models.layers.mixture.experts import Experts

    for layer in model.modules():
        if isinstance(layer, Experts):
            layer.take_part()
