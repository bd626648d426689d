"""The lightning index of sparse attention over a paged cache of index keys: contract and reference."""

from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
from atom_kernels.attention.index.reference import best_positions, lightning_index

__all__ = ["IndexProblem", "IndexPrologue", "best_positions", "lightning_index"]
