"""Linear layers: dense, alone and with their neighbors; over quantized weights."""

from atom_kernels.linear.contract import (
    FusedLinearProblem,
    LinearProblem,
    QuantizedLinearProblem,
    fused_linear,
    linear,
    linear_quantized,
)
from atom_kernels.linear.dense import OP
from atom_kernels.linear.fused import FUSED_LINEAR
from atom_kernels.linear.quantized import LINEAR_QUANTIZED

OPS = (OP, FUSED_LINEAR, LINEAR_QUANTIZED)

__all__ = [
    "FUSED_LINEAR",
    "LINEAR_QUANTIZED",
    "OP",
    "OPS",
    "FusedLinearProblem",
    "LinearProblem",
    "QuantizedLinearProblem",
    "fused_linear",
    "linear",
    "linear_quantized",
]
