"""Sums over the ranks that share a layer, and what a layer leaves of one to whoever reads its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.reduce import ALL_REDUCE, AllReduceProblem
from atom_kernels.select import select
from atom_models.layers.norms.residual import Unreduced

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class RankSum:
    """``rank_sum(x [T, D]) -> x`` summed over ranks; where a kernel of ours does it, the result is `Unreduced`.

    x may be overwritten.
    """

    def __init__(self, hidden_size: int, context: BuildContext) -> None:
        self._ranks = context.collectives
        plan = select(ALL_REDUCE, AllReduceProblem(hidden_size, context.dtype, self._ranks), context.platform)
        self._kernel = plan.prepare() if self._ranks.size > 1 and plan.has_kernel else None

    def __call__(self, x: torch.Tensor) -> Any:
        if self._kernel is not None:
            return Unreduced(self._kernel, x.contiguous())
        return self._ranks.all_reduce(x) if self._ranks.size > 1 else x
