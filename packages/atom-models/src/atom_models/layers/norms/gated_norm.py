"""RMS norm of the heads of a row, times what gates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.norm import GATED_RMS_NORM, GatedRMSNormProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class GatedRMSNorm(WeightedLayer):
    """``forward(x [T, heads * size], gate of that shape) -> y``: each head normed by itself, times ``silu(gate)``.

    Args:
        heads: how many groups of `size` a row has.
        size: elements of a head, which share one weight.
        eps: added to the mean square.
    """

    def __init__(self, heads: int, size: int, eps: float, context: BuildContext, *, prefix: str) -> None:
        super().__init__(context)
        self.expect(f"{prefix}.weight", (size,))
        self._problem = GatedRMSNormProblem(size, heads, context.dtype, eps)
        self._norm: Callable[..., Any] = not_loaded(prefix)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self._norm(x, gate)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        self._norm = select(GATED_RMS_NORM, self._problem, self._context.platform).prepare(weights)
