"""Linear layers by number format: dense, and int8 weights with a scale for each output channel."""

from atom_kernels.linear.contract import Int8LinearProblem, LinearProblem, linear, linear_int8, quantize_int8
from atom_kernels.linear.dense import OP
from atom_kernels.linear.int8 import OP as LINEAR_INT8

OPS = (OP, LINEAR_INT8)

__all__ = [
    "LINEAR_INT8",
    "OP",
    "OPS",
    "Int8LinearProblem",
    "LinearProblem",
    "linear",
    "linear_int8",
    "quantize_int8",
]
