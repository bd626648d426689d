"""Attention over a paged cache: contract, reference, and what is done to raw queries and keys first."""

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.attention.reference import paged_attention

__all__ = ["AttentionProblem", "AttentionPrologue", "apply_prologue", "paged_attention", "write_cache"]
