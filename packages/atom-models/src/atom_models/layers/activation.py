"""Activations by their Hugging Face names, with a gate and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.activation import Activation, ActivationProblem, GatedActivationProblem, SigmoidGateProblem
from atom_kernels.activation.ops import ACTIVATION, GATED_ACTIVATION
from atom_kernels.activation.rounded import ROUNDED_GATED_ACTIVATION, RoundedActivationProblem
from atom_kernels.activation.sigmoid_gate import SIGMOID_GATE
from atom_kernels.select import select
from atom_models.layers.layer import Layer
from atom_models.layers.norms.residual import Rounded

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_models.build_context import BuildContext
    from atom_models.layers.linear import Linear

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.QUICK_GELU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
}


def activation_named(hidden_act: str) -> Activation:
    """The activation that Hugging Face calls `hidden_act`.

    Raises:
        ValueError: there is none; it names those there are.
    """
    if hidden_act not in _ACTIVATIONS:
        raise ValueError(f"hidden_act is {hidden_act!r}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[hidden_act]


class UngatedActivation(Layer):
    """``act(x)`` of ``[T, intermediate_size]``: what stands between the two linears of an MLP without a gate."""

    def __init__(self, hidden_act: str, intermediate_size: int, context: BuildContext) -> None:
        super().__init__()
        problem = ActivationProblem(intermediate_size, context.dtype, activation_named(hidden_act))
        self._apply_to = select(ACTIVATION, problem, context.platform).prepare()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._apply_to(x)


class GatedActivation(Layer):
    """``act(gate) * up`` of ``[T, 2 * intermediate_size]``, gate first -> ``[T, intermediate_size]``.

    Where the linear `after`, which gives gate and up, can end with the activation, this layer does nothing, and its
    `problem` is None. Where the linear that it `feeds` rounds its rows and a kernel activates and rounds at once, the
    result is `Rounded`, and `rounded` is the problem of both.
    """

    def __init__(
        self,
        hidden_act: str,
        intermediate_size: int,
        context: BuildContext,
        *,
        after: Linear | None = None,
        feeds: Linear | None = None,
    ) -> None:
        super().__init__()
        problem = GatedActivationProblem(intermediate_size, context.dtype, activation_named(hidden_act))
        ends = problem.activation is Activation.SILU and after is not None and after.end_with_silu_and_mul()
        self.problem = None if ends else problem
        self.rounded = None if ends else _rounded_by_a_kernel(problem, feeds, context.platform)
        self._apply_to: Callable[[torch.Tensor], Any] | None = None
        if self.rounded is not None:
            activate = select(ROUNDED_GATED_ACTIVATION, self.rounded, context.platform).prepare()
            self._apply_to = lambda gate_up: Rounded(*activate(gate_up))
        elif not ends:
            self._apply_to = select(GATED_ACTIVATION, problem, context.platform).prepare()

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor | Rounded:
        return gate_up if self._apply_to is None else self._apply_to(gate_up)


def _rounded_by_a_kernel(
    gated: GatedActivationProblem, feeds: Linear | None, platform: Platform
) -> RoundedActivationProblem | None:
    """The activation with the rounding of the linear that it feeds, if a kernel does both at once."""
    if feeds is None or feeds.row_rounding is None:
        return None
    problem = RoundedActivationProblem(gated, feeds.row_rounding)
    return problem if select(ROUNDED_GATED_ACTIVATION, problem, platform).has_kernel else None


class SigmoidGate(Layer):
    """``x [T, groups * size] * sigmoid(gate [T, groups, size])``, plus a base if one is given.

    Args:
        one_gate: gates are ``[T, groups, 1]``.
    """

    def __init__(self, groups: int, size: int, context: BuildContext, *, one_gate: bool = False) -> None:
        super().__init__()
        problem = SigmoidGateProblem(groups, size, context.dtype, one_gate)
        self._apply_to = select(SIGMOID_GATE, problem, context.platform).prepare()

    def forward(self, x: torch.Tensor, gate: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
        return self._apply_to(x, gate, base)
