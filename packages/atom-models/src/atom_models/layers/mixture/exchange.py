"""`RowExchange`: rows of several engines, each with requests of its own, meet the experts that are spread over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch import nn

from atom_models.layers.mixture.dispatched_rows import dispatch_rows
from atom_models.layers.mixture.exchange_rule import ExchangeRule
from atom_models.layers.mixture.gathered_rows import gather_rows
from atom_models.layers.mixture.sent_rows import send_rows

if TYPE_CHECKING:
    from atom_kernels.protocols import RowDispatcher, UnevenCollectives
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig
    from atom_models.layers.mixture.placement import ExpertPlacement, SlotsOfIds

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
    """``exchange(experts, slots_of, x [T, D], weights [T, K], ids [T, K]) -> [T, D]``: what all ranks' experts sum to.

    ``experts(x, weights, slots, None)`` runs those of this rank, and `slots_of` finds the slots of each rank.

    Args:
        ranks: one of each engine; they call it in the same steps, in the same order.
        rule: how the rows of a step are exchanged; all ranks have the same.
        dispatcher: exchanges the rows of every step instead.
    """

    def __init__(self, ranks: UnevenCollectives, rule: ExchangeRule, dispatcher: RowDispatcher | None = None) -> None:
        self._ranks, self._rule, self._dispatcher = ranks, rule, dispatcher

    @classmethod
    def of(cls, config: MoEConfig, context: BuildContext, placement: ExpertPlacement | None) -> RowExchange | None:
        """That of a mixture whose experts are placed so; None where no other engine has any of them."""
        ranks, make = context.groups.data, context.row_dispatchers
        if ranks.size == 1:
            return None
        dispatcher = None
        if make is not None and placement is not None:
            most_slots = max(map(len, placement.slots))
            dispatcher = make(context.dtype, config.hidden_size, config.top_k, most_slots)
        return cls(ranks, ExchangeRule.of(config, context), dispatcher)

    def __call__(
        self,
        experts: Callable[..., torch.Tensor],
        slots_of: Sequence[SlotsOfIds],
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        counts, ranks = _rows_of_engines.get(), self._ranks
        if counts and counts[ranks.rank] != len(x):
            raise RuntimeError(f"the engines agreed on {list(counts)} rows, and this one has {len(x)}")
        if counts and self._dispatcher is not None:
            return send_rows(self._dispatcher, ranks.rank, experts, slots_of, x, weights, ids)
        if counts and self._rule.dispatches(counts):
            return dispatch_rows(ranks, experts, slots_of, x, weights, ids)

        find_slots = slots_of[ranks.rank]

        def own(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return experts(x, weights, find_slots(ids), None)

        if counts:
            return gather_rows(ranks, counts, own, x, weights, ids)
        return own(*(one.repeat(ranks.size, 1) for one in (x, weights, ids)))[: len(x)]


def take_part(model: nn.Module) -> None:
    """Run the experts of every mixture on the rows of other engines, in a step to which this engine has none."""
    from atom_models.layers.mixture.experts import Experts

    for layer in model.modules():
        if isinstance(layer, Experts):
            layer.take_part()
