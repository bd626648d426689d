"""Linear layers over plain and quantized weights, alone and with their neighbors."""

from atom_kernels.linear.contract import LinearProblem, linear
from atom_kernels.linear.ops import LINEAR

OPS = (LINEAR,)

__all__ = ["LINEAR", "OPS", "LinearProblem", "linear"]
