"""RMS norm over elements that ranks share, such as all heads of the queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from atom_kernels.norm import RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class WideRMSNorm(Layer):
    """``forward(x [T, this rank's share of hidden_size]) -> y``, with the mean square over the shares of all ranks.

    Args:
        hidden_size: over all ranks.
        num_pieces: different pieces that ranks hold, where it is less than the ranks: some then hold the same ones.
    """

    ignored_weights: frozenset[str] = frozenset()

    def __init__(
        self, hidden_size: int, eps: float, context: BuildContext, *, prefix: str, num_pieces: int | None = None
    ) -> None:
        super().__init__()
        self._name, self._context, self._eps = f"{prefix}.weight", context, eps
        self._hidden_size, self._ranks = hidden_size, context.collectives
        self._pieces = min(self._ranks.size, num_pieces or self._ranks.size)
        self._weight: torch.Tensor | None = None
        self._norm: Callable[[torch.Tensor], torch.Tensor] = not_loaded(prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x)

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {self._name: ExpectedWeight((self._hidden_size,), self._context.dtype)}

    def shapes_on_rank(self) -> list[tuple[int, ...]]:
        return [(self._hidden_size // self._pieces,)]

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        size = self._hidden_size // self._pieces
        piece = self._ranks.rank * self._pieces // self._ranks.size
        part = tensor[piece * size : (piece + 1) * size]
        self._weight = part.to(device=self._context.device, dtype=self._context.dtype, copy=True)

    def finish(self) -> None:
        if self._ranks.size > 1:
            self._norm = self._norm_over_ranks
            return
        problem = RMSNormProblem(self._hidden_size, self._context.dtype, self._eps, 0.0)
        self._norm = select(RMS_NORM, problem, self._context.platform).prepare({"weight": self._weight})

    def _norm_over_ranks(self, x: torch.Tensor) -> torch.Tensor:
        if self._weight is None:
            raise RuntimeError(f"{self._name} is not loaded")
        squares = self._ranks.all_reduce(x.float().square().sum(dim=-1, keepdim=True))
        # Each piece was counted by as many ranks as hold it.
        mean = squares * self._pieces / (self._ranks.size * self._hidden_size)
        return (x.float() * torch.rsqrt(mean + self._eps) * self._weight.float()).to(x.dtype)
