"""Activations of an MLP: of one value, or of a gate times its partner.

The operators are in `atom_kernels.activation.ops`: AITER's adapters, which those import, take the names from here.
"""

from atom_kernels.activation.contract import (
    ActivationProblem,
    GatedActivationProblem,
    SigmoidGateProblem,
    activation,
    gated,
    gated_activation,
    sigmoid_gate,
)
from atom_kernels.activation.names import UNGATED, Activation, check_activation

__all__ = [
    "UNGATED",
    "Activation",
    "ActivationProblem",
    "GatedActivationProblem",
    "SigmoidGateProblem",
    "activation",
    "check_activation",
    "gated",
    "gated_activation",
    "sigmoid_gate",
]
