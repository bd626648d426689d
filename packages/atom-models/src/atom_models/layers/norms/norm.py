"""RMS norm, which may add a residual first and may emit the form that its consumer wants."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_kernels.norm import (
    ADD_RMS_NORM,
    RMS_NORM,
    ROUNDED_ADD_RMS_NORM,
    ROUNDED_RMS_NORM,
    RMSNormProblem,
    RoundedNormProblem,
)
from atom_kernels.reduce import (
    ALL_REDUCE_ADD_RMS_NORM,
    ALL_REDUCE_ROUNDED_ADD_RMS_NORM,
    AllReduceNormProblem,
    RoundedAllReduceNormProblem,
    SentPieces,
)
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.norms.residual import Normed, Norms, Residual, Rounded, Term, Unnormed, summed
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_kernels.formats import RowRounding
    from atom_kernels.platform import Platform
    from atom_models.build_context import BuildContext


class MayNorm(Protocol):
    """A layer that norms its input by itself up to so many rows, or takes it rounded."""

    max_normed_rows: int
    row_rounding: RowRounding | None


class RMSNorm(WeightedLayer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed`, `Unreduced` or `Sent`.

    An addition to the residual that is still open is computed together with the norm. Where the consumer norms by
    itself (few rows on a GPU), y is what it is to norm, with this norm's weight beside it. Where the consumer rounds
    its rows and a kernel norms and rounds at once, y is `Rounded`.

    Args:
        hidden_size: the size of the last dimension.
        eps: added to the mean square.
        feeds: the layer that consumes y, and may norm by itself or take it rounded.
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
        self.rounded = _rounded_by_a_kernel(self.problem, feeds, context.platform)
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
        if self.rounded is not None:
            rounded_norm = select(ROUNDED_RMS_NORM, self.rounded, platform).prepare(weights)
            rounded_add_norm = select(ROUNDED_ADD_RMS_NORM, self.rounded, platform).prepare(weights)
            alone, add_norm = lambda x: Rounded(*rounded_norm(x)), _rounding(rounded_add_norm)
            rounded_over_ranks = RoundedAllReduceNormProblem(self.rounded, self._context.collectives)
            plan = select(ALL_REDUCE_ROUNDED_ADD_RMS_NORM, rounded_over_ranks, platform)
            reduce_norm = _rounding(plan.prepare(weights)) if plan.has_kernel else reduce_norm
        sent_norm = partial(SentPieces.add_rms_norm, weight=weight, norm=self.problem)
        self._norms = Norms(alone, add_norm, reduce_norm, sent_norm if self.rounded is None else None)


def _rounded_by_a_kernel(norm: RMSNormProblem, feeds: MayNorm | None, platform: Platform) -> RoundedNormProblem | None:
    """The norm with the rounding of the layer that it feeds, if kernels do both at once."""
    if feeds is None or feeds.row_rounding is None:
        return None
    problem = RoundedNormProblem(norm, feeds.row_rounding)
    plans = (select(op, problem, platform) for op in (ROUNDED_RMS_NORM, ROUNDED_ADD_RMS_NORM))
    return problem if all(plan.has_kernel for plan in plans) else None


def _rounding(add_norm: Callable[..., Any]) -> Callable[..., tuple[Rounded, torch.Tensor]]:
    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[Rounded, torch.Tensor]:
        codes, scale, total = add_norm(x, residual)
        return Rounded(codes, scale), total

    return run
