"""RMS norm, which may add a residual first and may emit the form that its consumer wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.loadable import check_shape, not_loaded
from atom_models.layers.residual import Residual, Unsummed, summed
from atom_models.quantization import DENSE_INPUT, ExpectedWeight, InputFormat, Unnormed, UnnormedInput

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class TakesFormat(Protocol):
    """A layer that says in which form it wants its input."""

    input_format: InputFormat


class RMSNorm(Layer):
    """``forward(x) -> y``, where x is a tensor, the `Residual`, or what a layer left `Unsummed`.

    An addition to the residual that is still open is computed together with the norm. Where the consumer norms by
    itself (few rows on a GPU), y is what it is to norm, with this norm's weight beside it.

    Args:
        hidden_size: of the last dimension.
        eps: added to the mean square.
        feeds: the linear that consumes y; y comes in its input format (a tensor, or values with scales).
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
        feeds: TakesFormat | None = None,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.eps = eps
        self._name = f"{prefix}.weight"
        self._problem = RMSNormProblem(hidden_size, context.dtype, eps, weight_offset)
        self._context = context
        self._format = feeds.input_format if feeds is not None else DENSE_INPUT
        self._weight: torch.Tensor | None = None
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

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {self._name: ExpectedWeight((self._problem.hidden_size,), self._problem.dtype)}

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        check_shape(name, tensor, self.expected_weights()[name])
        self._weight = tensor.to(device=self._context.device, dtype=self._problem.dtype, copy=True)

    def finish(self) -> None:
        offset = self._problem.weight_offset
        self._effective_weight = self._weight + offset if offset and self._weight is not None else self._weight
        weights, platform = {"weight": self._weight}, self._context.platform
        norm = select(RMS_NORM, self._problem, platform).prepare(weights)
        add_norm = select(ADD_RMS_NORM, self._problem, platform).prepare(weights)
        if self._format == DENSE_INPUT:
            self._norm, self._add_norm = norm, add_norm
            return
        if isinstance(self._format, UnnormedInput):
            self._norm, self._add_norm = self._norm_many_rows(self._format.max_rows, norm), add_norm
            return
        encode = self._format.encode

        def add_norm_encoded(x: torch.Tensor, residual: torch.Tensor) -> tuple[Any, torch.Tensor]:
            y, new_residual = add_norm(x, residual)
            return encode(y), new_residual

        self._norm, self._add_norm = lambda x: encode(norm(x)), add_norm_encoded

    def _norm_many_rows(self, max_rows: int, norm: Callable[..., Any]) -> Callable[..., Any]:
        """Up to `max_rows` rows go to the consumer as they are; where a residual is to be added, the norm is free."""
        return lambda x: self._hand_on(x) if x.shape[0] <= max_rows else norm(x)

    def _hand_on(self, x: torch.Tensor) -> Unnormed:
        if self._weight is None:
            raise RuntimeError(f"{self._name} is not loaded")
        return Unnormed(x, self._weight, self._problem.eps, self._problem.weight_offset)
