"""Norms, and the sums between layers that they read."""
