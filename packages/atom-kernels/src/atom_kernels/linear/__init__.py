"""Linear layers by number format: dense, alone and with their neighbors; int8 weights with a scale for each output."""

from atom_kernels.linear.contract import (
    FusedLinearProblem,
    Int8LinearProblem,
    LinearProblem,
    fused_linear,
    linear,
    linear_int8,
    quantize_int8,
)
from atom_kernels.linear.dense import OP
from atom_kernels.linear.fused import FUSED_LINEAR
from atom_kernels.linear.int8 import OP as LINEAR_INT8

OPS = (OP, FUSED_LINEAR, LINEAR_INT8)

__all__ = [
    "FUSED_LINEAR",
    "LINEAR_INT8",
    "OP",
    "OPS",
    "FusedLinearProblem",
    "Int8LinearProblem",
    "LinearProblem",
    "fused_linear",
    "linear",
    "linear_int8",
    "quantize_int8",
]
