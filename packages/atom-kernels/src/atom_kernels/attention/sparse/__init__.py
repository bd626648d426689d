"""Latent attention over chosen positions of a paged cache of latents: contract and reference."""

from atom_kernels.attention.sparse.problem import SparseMlaProblem
from atom_kernels.attention.sparse.reference import sparse_latent_attention

__all__ = ["SparseMlaProblem", "sparse_latent_attention"]
