"""Sums over ranks, alone or with what follows them in a decoder: the residual's addition and its norm."""

from atom_kernels.reduce.contract import AllReduceNormProblem, AllReduceProblem, all_reduce, all_reduce_add_rms_norm
from atom_kernels.reduce.ops import ALL_REDUCE, ALL_REDUCE_ADD_RMS_NORM, OPS
from atom_kernels.reduce.pieces import PieceSum, SentPieces, piece_sum
from atom_kernels.reduce.rounded import ALL_REDUCE_ROUNDED_ADD_RMS_NORM, RoundedAllReduceNormProblem

__all__ = [
    "ALL_REDUCE",
    "ALL_REDUCE_ADD_RMS_NORM",
    "ALL_REDUCE_ROUNDED_ADD_RMS_NORM",
    "OPS",
    "AllReduceNormProblem",
    "AllReduceProblem",
    "PieceSum",
    "RoundedAllReduceNormProblem",
    "SentPieces",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "piece_sum",
]
