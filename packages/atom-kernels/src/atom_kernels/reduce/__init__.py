"""Sums over ranks, alone or with what follows them in a decoder: the residual's addition and its norm."""

from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem, all_reduce, all_reduce_add_rms_norm
from atom_kernels.reduce.ops import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, OPS

__all__ = [
    "ALL_REDUCE",
    "ALL_REDUCE_ADD_RMS_NORM",
    "OPS",
    "AllReduceNormProblem",
    "AllReduceProblem",
    "all_reduce",
    "all_reduce_add_rms_norm",
]
