"""What low-rank adapters add to a linear: contract, backends, operator."""

from atom_kernels.adapters.contract import LowRankProblem, LowRankTerm, add_low_rank
from atom_kernels.adapters.matrices_in_c import MatricesInC
from atom_kernels.adapters.ops import ADD_LOW_RANK, OPS

__all__ = ["ADD_LOW_RANK", "OPS", "LowRankProblem", "LowRankTerm", "MatricesInC", "add_low_rank"]
