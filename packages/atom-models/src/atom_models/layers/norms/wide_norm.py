"""RMS norm over elements that ranks share, such as all heads of the queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from atom_kernels.norm import RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class WideRMSNorm(WeightedLayer):
    """``forward(x [T, this rank's share of hidden_size]) -> y``, with the mean square over the shares of all ranks.

    Args:
        hidden_size: over all ranks.
        num_pieces: different pieces that ranks hold, where it is less than the ranks: some then hold the same ones.
    """

    def __init__(
        self, hidden_size: int, eps: float, context: BuildContext, *, prefix: str, num_pieces: int | None = None
    ) -> None:
        super().__init__(context)
        self._eps = eps
        self._hidden_size, self._ranks = hidden_size, context.collectives
        self._pieces = min(self._ranks.size, num_pieces or self._ranks.size)
        self.expect(f"{prefix}.weight", (hidden_size,), num_pieces=self._pieces)
        self._norm: Callable[[torch.Tensor], torch.Tensor] = not_loaded(prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        if self._ranks.size > 1:
            weight = weights["weight"].float()
            self._norm = lambda x: self._norm_over_ranks(x, weight)
            return
        problem = RMSNormProblem(self._hidden_size, self._context.dtype, self._eps, 0.0)
        self._norm = select(RMS_NORM, problem, self._context.platform).prepare(weights)

    def _norm_over_ranks(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        squares = self._ranks.all_reduce(x.float().square().sum(dim=-1, keepdim=True))
        # Each piece was counted by as many ranks as hold it.
        mean = squares * self._pieces / (self._ranks.size * self._hidden_size)
        return (x.float() * torch.rsqrt(mean + self._eps) * weight).to(x.dtype)
