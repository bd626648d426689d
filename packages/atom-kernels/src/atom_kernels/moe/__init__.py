"""Mixture of experts: choosing experts for tokens, and computing only those that were chosen."""

from atom_kernels.moe.contract import ExpertsProblem, RoutingProblem, experts, route
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE, OPS

__all__ = ["MOE_EXPERTS", "MOE_ROUTE", "OPS", "ExpertsProblem", "RoutingProblem", "experts", "route"]
