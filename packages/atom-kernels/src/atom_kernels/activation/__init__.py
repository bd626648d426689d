"""Activations of an MLP: of one value, or of a gate times its partner."""

from atom_kernels.activation.contract import (
    ActivationProblem,
    GatedActivationProblem,
    activation,
    gated,
    gated_activation,
)
from atom_kernels.activation.names import UNGATED, Activation, check_activation
from atom_kernels.activation.ops import ACTIVATION, GATED_ACTIVATION, OPS

__all__ = [
    "ACTIVATION",
    "GATED_ACTIVATION",
    "OPS",
    "UNGATED",
    "Activation",
    "ActivationProblem",
    "GatedActivationProblem",
    "activation",
    "check_activation",
    "gated",
    "gated_activation",
]
