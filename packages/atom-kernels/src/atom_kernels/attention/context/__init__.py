"""Latent attention of a rank that keeps a part of each context: contract, and what puts the parts together."""

from atom_kernels.attention.context.merge import merge_parts
from atom_kernels.attention.context.problem import PartialMlaProblem

__all__ = ["PartialMlaProblem", "merge_parts"]
