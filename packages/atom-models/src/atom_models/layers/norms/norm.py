"""RMS norm, which may add a residual first and may emit the form that its consumer wants."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

import torch

from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from atom_kernels.reduce import ALL_REDUCE_ADD_RMS_NORM, AllReduceNormProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.norms.residual import Normed, Norms, Residual, Term, Unnormed, summed
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class MayNorm(Protocol):
    """A layer that norms its input by itself up to so many rows."""

    max_normed_rows: int


class RMSNorm(WeightedLayer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed` or `Unreduced`.

    An addition to the residual that is still open is computed together with the norm. Where the consumer norms by
    itself (few rows on a GPU), y is what it is to norm, with this norm's weight beside it.

    Args:
        hidden_size: the size of the last dimension.
        eps: added to the mean square.
        feeds: the layer that consumes y, and may norm by itself.
        weight_offset: added to the weight, for models that store ``weight - 1``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        context: BuildContext,
        *,
        prefix: str,
        feeds: MayNorm | None = None,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__(context)
        self.eps = eps
        self._name = f"{prefix}.weight"
        self.expect(self._name, (hidden_size,))
        self.problem = RMSNormProblem(hidden_size, context.dtype, eps, weight_offset)
        self._max_unnormed_rows = 0 if feeds is None else feeds.max_normed_rows
        self._effective_weight: torch.Tensor | None = None
        missing = not_loaded(prefix)
        self._norms = Norms(missing, missing, missing)

    @property
    def effective_weight(self) -> torch.Tensor:
        """What the normed values are multiplied with, offset included; for operators that norm by themselves."""
        if self._effective_weight is None:
            raise RuntimeError(f"{self._name} is not loaded")
        return self._effective_weight

    def forward(self, x: Term | Residual) -> Normed:
        if isinstance(x, Residual):
            return x.normed(self._norms)
        return self._norms.norm(summed(x))

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        weight, offset, platform = weights["weight"], self.problem.weight_offset, self._context.platform
        self._effective_weight = weight + offset if offset else weight
        norm = select(RMS_NORM, self.problem, platform).prepare(weights)
        max_rows, how = self._max_unnormed_rows, (weight, self.problem.eps, offset)
        if max_rows == sys.maxsize:
            self._norms = Norms(lambda x: Unnormed(x, *how))
            return
        # Where a residual is to be added, the norm is free.
        add_norm = select(ADD_RMS_NORM, self.problem, platform).prepare(weights)
        over_ranks = AllReduceNormProblem(self.problem, self._context.collectives)
        reduce_norm = select(ALL_REDUCE_ADD_RMS_NORM, over_ranks, platform).prepare(weights)
        alone = (lambda x: Unnormed(x, *how) if x.shape[0] <= max_rows else norm(x)) if max_rows else norm
        self._norms = Norms(alone, add_norm, reduce_norm)
