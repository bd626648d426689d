"""Scores of pairs of texts: how a query and a document go together, in the ways that models have."""

from atom_server.scoring.choice import score_pairs

__all__ = ["score_pairs"]
