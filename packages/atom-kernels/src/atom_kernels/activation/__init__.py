"""Activations of an MLP: of one value, or of a gate times its partner."""

from atom_kernels.activation.contract import (
    ActivationProblem,
    GatedActivationProblem,
    activation,
    gated,
    gelu_and_mul,
    silu_and_mul,
    swiglu_oai_and_mul,
)
from atom_kernels.activation.names import UNGATED, Activation, check_activation
from atom_kernels.activation.ops import ACTIVATION, GELU_AND_MUL, OPS, SILU_AND_MUL, SWIGLU_OAI_AND_MUL

__all__ = [
    "ACTIVATION",
    "GELU_AND_MUL",
    "OPS",
    "SILU_AND_MUL",
    "SWIGLU_OAI_AND_MUL",
    "UNGATED",
    "Activation",
    "ActivationProblem",
    "GatedActivationProblem",
    "activation",
    "check_activation",
    "gated",
    "gelu_and_mul",
    "silu_and_mul",
    "swiglu_oai_and_mul",
]
