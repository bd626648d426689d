"""Layer norm, with a bias or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.norm import LAYER_NORM, LayerNormProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.norms.residual import Residual, Term, summed
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class LayerNorm(WeightedLayer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed`, `Unreduced` or `Sent`.

    Args:
        hidden_size: the size of the last dimension.
        eps: added to the variance.
        bias: the checkpoint has one.
        weight_offset: added to the weight, for models that store ``weight - 1``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        context: BuildContext,
        *,
        prefix: str,
        bias: bool = True,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__(context)
        self._problem = LayerNormProblem(hidden_size, context.dtype, eps, bias, weight_offset)
        for slot in ("weight", "bias") if bias else ("weight",):
            self.expect(f"{prefix}.{slot}", (hidden_size,), slot=slot)
        self._norm: Callable[..., Any] = not_loaded(prefix)

    def forward(self, x: Term | Residual) -> torch.Tensor:
        return self._norm(summed(x))

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._norm = select(LAYER_NORM, self._problem, self._context.platform).prepare(weights)
