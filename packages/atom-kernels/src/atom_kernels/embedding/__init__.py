"""Vocabulary embedding: a row of the table for each token id."""

from atom_kernels.embedding.ops import OP, OPS, EmbeddingProblem, embedding

__all__ = ["OP", "OPS", "EmbeddingProblem", "embedding"]
