"""Mixtures of experts: the router, the experts, and how their weights are held."""
