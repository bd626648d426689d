"""Sums over the ranks that share a layer, and what a layer leaves of one to whoever reads its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.reduce import ALL_REDUCE, AllReduceProblem, piece_sum
from atom_kernels.select import select
from atom_models.layers.norms.residual import Sent, Unreduced

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class RankSum:
    """``rank_sum(x [T, D]) -> x`` summed over ranks; where a kernel of ours does it, it is `Unreduced` or `Sent`.

    x may be overwritten.
    """

    def __init__(self, hidden_size: int, context: BuildContext) -> None:
        self._ranks = context.collectives
        problem = AllReduceProblem(hidden_size, context.dtype, self._ranks)
        plan = select(ALL_REDUCE, problem, context.platform)
        self._kernel = plan.prepare() if self._ranks.size > 1 and plan.has_kernel else None
        self._pieces = piece_sum(problem)

    def sender(self, num_rows: int) -> Callable[[Callable[[slice], torch.Tensor]], Sent] | None:
        """What sums so many rows while they are computed, a run of them at a time; None if they are summed at once.

        It is called with what computes a run, which gives each row as it would in any other run.
        """
        if self._pieces is None or not self._pieces.takes(num_rows):
            return None
        pieces = self._pieces
        return lambda compute: Sent(pieces.send(compute, num_rows))

    def __call__(self, x: torch.Tensor) -> Any:
        if send := self.sender(x.shape[0]):
            return send(x.__getitem__)
        if self._kernel is not None:
            return Unreduced(self._kernel, x.contiguous())
        return self._ranks.all_reduce(x) if self._ranks.size > 1 else x
