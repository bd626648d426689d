"""Gated activations of an MLP: silu, gelu and GPT-OSS's clamped swiglu, each times its gate's partner."""

from atom_kernels.activation.contract import (
    GatedActivationProblem,
    gelu_and_mul,
    silu_and_mul,
    swiglu_oai_and_mul,
)
from atom_kernels.activation.ops import GELU_AND_MUL, OPS, SILU_AND_MUL, SWIGLU_OAI_AND_MUL

__all__ = [
    "GELU_AND_MUL",
    "OPS",
    "SILU_AND_MUL",
    "SWIGLU_OAI_AND_MUL",
    "GatedActivationProblem",
    "gelu_and_mul",
    "silu_and_mul",
    "swiglu_oai_and_mul",
]
