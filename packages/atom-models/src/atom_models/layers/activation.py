"""Gated activations by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from atom_kernels.activation import GELU_AND_MUL, SILU_AND_MUL, GatedActivationProblem
from atom_kernels.select import select
from atom_models.layers.layer import Layer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.linear import Linear

# hidden_act -> (operator, how gelu is computed)
_ACTIVATIONS = {
    "silu": (SILU_AND_MUL, "none"),
    "swish": (SILU_AND_MUL, "none"),
    "gelu": (GELU_AND_MUL, "none"),
    "gelu_new": (GELU_AND_MUL, "tanh"),
    "gelu_pytorch_tanh": (GELU_AND_MUL, "tanh"),
}


class GatedActivation(Layer):
    """``act(gate) * up`` of ``[T, 2 * intermediate_size]``, gate first -> ``[T, intermediate_size]``.

    Where `after`, the linear that gives gate and up, can end with the activation itself, there is nothing left to do.
    """

    def __init__(
        self, hidden_act: str, intermediate_size: int, context: BuildContext, *, after: Linear | None = None
    ) -> None:
        super().__init__()
        if hidden_act not in _ACTIVATIONS:
            raise ValueError(f"hidden_act is {hidden_act!r}; supported: {', '.join(_ACTIVATIONS)}")
        op, approximate = _ACTIVATIONS[hidden_act]
        problem = GatedActivationProblem(intermediate_size, context.dtype, approximate=approximate)
        self._apply_to: Callable[[torch.Tensor], torch.Tensor] | None = None
        if op is not SILU_AND_MUL or after is None or not after.end_with_silu_and_mul():
            self._apply_to = select(op, problem, context.platform).prepare()

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gate_up if self._apply_to is None else self._apply_to(gate_up)
