"""Mixtures of experts through Triton: routing, and products of the chosen experts."""
