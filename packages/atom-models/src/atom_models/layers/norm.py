"""RMS norm, which may add a residual first and may emit the form that its consumer wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.residual import Residual, Unsummed, summed
from atom_models.layers.weighted_layer import WeightedLayer
from atom_models.quantization import DENSE_INPUT, InputFormat, Unnormed, UnnormedInput

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class TakesFormat(Protocol):
    """A layer that says in which form it wants its input."""

    input_format: InputFormat


class RMSNorm(WeightedLayer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed`.

    An addition to the residual that is still open is computed together with the norm. Where the consumer norms by
    itself (few rows on a GPU), y is what it is to norm, with this norm's weight beside it.

    Args:
        hidden_size: of the last dimension.
        eps: added to the mean square.
        feeds: the linear that consumes y; y comes in its input format (a tensor, or values with scales).
        weight_offset: added to the weight, for models that store ``weight - 1``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        context: BuildContext,
        *,
        prefix: str,
        feeds: TakesFormat | None = None,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__(context)
        self.eps = eps
        self._name = f"{prefix}.weight"
        self.expect(self._name, (hidden_size,))
        self._problem = RMSNormProblem(hidden_size, context.dtype, eps, weight_offset)
        self._format = feeds.input_format if feeds is not None else DENSE_INPUT
        self._effective_weight: torch.Tensor | None = None
        self._norm: Callable[..., Any] = not_loaded(prefix)
        self._add_norm: Callable[..., Any] = not_loaded(prefix)

    @property
    def effective_weight(self) -> torch.Tensor:
        """What the normed values are multiplied with, offset included; for operators that norm by themselves."""
        if self._effective_weight is None:
            raise RuntimeError(f"{self._name} is not loaded")
        return self._effective_weight

    def forward(self, x: torch.Tensor | Residual | Unsummed) -> Any:
        if isinstance(x, Residual):
            return x.normed(self._norm, self._add_norm)
        return self._norm(summed(x))

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        weight, offset, platform = weights["weight"], self._problem.weight_offset, self._context.platform
        self._effective_weight = weight + offset if offset else weight
        norm = select(RMS_NORM, self._problem, platform).prepare(weights)
        add_norm = select(ADD_RMS_NORM, self._problem, platform).prepare(weights)
        if self._format == DENSE_INPUT:
            self._norm, self._add_norm = norm, add_norm
            return
        if isinstance(self._format, UnnormedInput):
            how = (weight, self._problem.eps, offset)
            self._norm, self._add_norm = _norm_many_rows(self._format.max_rows, norm, how), add_norm
            return
        encode = self._format.encode

        def add_norm_encoded(x: torch.Tensor, residual: torch.Tensor) -> tuple[Any, torch.Tensor]:
            y, new_residual = add_norm(x, residual)
            return encode(y), new_residual

        self._norm, self._add_norm = lambda x: encode(norm(x)), add_norm_encoded


def _norm_many_rows(
    max_rows: int, norm: Callable[..., Any], how: tuple[torch.Tensor, float, float]
) -> Callable[..., Any]:
    """Up to `max_rows` rows go to the consumer as they are; where a residual is to be added, the norm is free."""
    return lambda x: Unnormed(x, *how) if x.shape[0] <= max_rows else norm(x)
