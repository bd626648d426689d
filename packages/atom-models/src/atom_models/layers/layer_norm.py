"""Layer norm, with a bias or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.norm import LAYER_NORM, LayerNormProblem
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.layers.residual import Residual, Unsummed, summed
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class LayerNorm(Layer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed`.

    Args:
        hidden_size: of the last dimension.
        eps: added to the variance.
        bias: the checkpoint has one.
        weight_offset: added to the weight, for models that store ``weight - 1``.
    """

    ignored_weights: frozenset[str] = frozenset()

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
        super().__init__()
        self._problem = LayerNormProblem(hidden_size, context.dtype, eps, bias, weight_offset)
        self._context = context
        self._slots = {f"{prefix}.{slot}": slot for slot in (("weight", "bias") if bias else ("weight",))}
        self._loaded: dict[str, torch.Tensor] = {}
        self._norm: Callable[..., Any] = not_loaded(prefix)

    def forward(self, x: torch.Tensor | Residual | Unsummed) -> torch.Tensor:
        return self._norm(summed(x))

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        shape = (self._problem.hidden_size,)
        return {name: ExpectedWeight(shape, self._problem.dtype) for name in self._slots}

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        self._loaded[self._slots[name]] = tensor.to(device=self._context.device, dtype=self._problem.dtype, copy=True)

    def finish(self) -> None:
        weights, self._loaded = self._loaded, {}
        self._norm = select(LAYER_NORM, self._problem, self._context.platform).prepare(weights)
