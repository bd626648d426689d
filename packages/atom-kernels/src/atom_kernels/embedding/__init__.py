"""Vocabulary embedding: a row of the table for each token id."""

from atom_kernels.embedding.contract import EmbeddingProblem, embedding
from atom_kernels.embedding.ops import OP, OPS

__all__ = ["OP", "OPS", "EmbeddingProblem", "embedding"]
