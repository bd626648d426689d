"""`ExpertBalancer`: places experts anew while an engine runs, by how many rows chose them lately."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import torch
from torch import nn

from atom_kernels.protocols import Collectives
from atom_models.layers.mixture.balance import balanced, loads_of_ranks
from atom_models.layers.mixture.counting import counted_rows
from atom_models.layers.mixture.experts import Experts

logger = logging.getLogger(__name__)


class ExpertBalancer:
    """Moves experts of a model between its ranks, each of which has one and calls it before every step.

    Args:
        model: a loaded model whose ranks hold whole experts.
        ranks: the ranks over which they are spread.
        device: where the model is.
        window: the steps before a move whose rows are counted.
        interval: steps between two moves.

    Raises:
        ValueError: the weights of a mixture cannot be moved.
    """

    def __init__(
        self, model: nn.Module, ranks: Collectives, device: torch.device | str, *, window: int, interval: int
    ) -> None:
        self._ranks, self._window, self._interval = ranks, window, interval
        every = [layer for layer in model.modules() if isinstance(layer, Experts)]
        self._experts = {experts.prefix: experts for experts in every if experts.placement is not None}
        for experts in self._experts.values():
            experts.movable()
        self._counting = ExitStack()
        self._counts = self._counting.enter_context(counted_rows(model, device))
        self._num_steps = 0
        self.num_moves = 0

    def before_step(self) -> None:
        """Count a step that is about to begin; where it is time, place experts anew first."""
        if self._num_steps == self._interval:
            self._num_steps = 0
            self.rebalance()
        if self._num_steps == self._interval - self._window:
            for counts_E in self._counts.values():
                counts_E.zero_()
        self._num_steps += 1

    def rebalance(self) -> None:
        """Place the experts of every mixture by the rows that were counted; where it would not help, they stay."""
        for name, experts in self._experts.items():
            old = experts.placement
            if old is None:
                continue
            # The sum is the same number everywhere, and so is what follows from it, whatever each rank counted.
            loads = self._ranks.all_reduce(self._counts[name].clone()).tolist()
            num_redundant = sum(map(len, old.slots)) - old.num_experts
            new = balanced(loads, self._ranks.size, num_redundant=num_redundant)
            before, after = (max(loads_of_ranks(one, loads)) for one in (old, new))
            if after < before:
                experts.move(new)
                self.num_moves += 1
                mean = sum(loads) / self._ranks.size
                logger.info(
                    "%s: experts moved: the busiest rank had %.2f times the mean of rows, and would have had %.2f",
                    *(name, before / mean, after / mean),
                )
