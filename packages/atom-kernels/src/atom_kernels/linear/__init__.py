"""Linear layers over plain and quantized weights, alone and with their neighbors."""

from atom_kernels.linear.contract import (
    FusedLinearProblem,
    LinearProblem,
    fused_linear,
    linear,
)
from atom_kernels.linear.dense import OP
from atom_kernels.linear.fused import FUSED_LINEAR

OPS = (OP, FUSED_LINEAR)

__all__ = [
    "FUSED_LINEAR",
    "OP",
    "OPS",
    "FusedLinearProblem",
    "LinearProblem",
    "fused_linear",
    "linear",
]
