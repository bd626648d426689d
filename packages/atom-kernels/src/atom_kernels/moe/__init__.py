"""Mixture of experts: choosing experts for tokens, and computing only those that were chosen.

The operators are in `atom_kernels.moe.ops`: AITER's adapters, which those import, take the problems from here.
"""

from atom_kernels.moe.contract import ExpertsProblem, RoutingProblem, experts, route

__all__ = ["ExpertsProblem", "RoutingProblem", "experts", "route"]
