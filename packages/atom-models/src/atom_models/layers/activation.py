"""Gated activations by their Hugging Face names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.activation import GELU_AND_MUL, SILU_AND_MUL, GatedActivationProblem
from atom_kernels.select import select
from atom_models.layers.layer import Layer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext

# hidden_act -> (operator, how gelu is computed)
_ACTIVATIONS = {
    "silu": (SILU_AND_MUL, "none"),
    "swish": (SILU_AND_MUL, "none"),
    "gelu": (GELU_AND_MUL, "none"),
    "gelu_new": (GELU_AND_MUL, "tanh"),
    "gelu_pytorch_tanh": (GELU_AND_MUL, "tanh"),
}


class GatedActivation(Layer):
    """``act(gate) * up`` of ``[T, 2 * intermediate_size]``, gate first -> ``[T, intermediate_size]``."""

    def __init__(self, hidden_act: str, intermediate_size: int, context: BuildContext) -> None:
        super().__init__()
        if hidden_act not in _ACTIVATIONS:
            raise ValueError(f"hidden_act is {hidden_act!r}; supported: {', '.join(_ACTIVATIONS)}")
        op, approximate = _ACTIVATIONS[hidden_act]
        problem = GatedActivationProblem(intermediate_size, context.dtype, approximate=approximate)
        self._apply_to = select(op, problem, context.platform).prepare()

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._apply_to(gate_up)
