"""Operators for LLM inference: one contract each, a torch reference, and the fastest implementation that runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_kernels.operator import Backend, Op, Tolerance, WeightError, WeightLayout, WeightSpec, Work
    from atom_kernels.plan import BoundPlan, Plan, PlanRow
    from atom_kernels.platform import Platform, detect_platform
    from atom_kernels.registry import all_ops
    from atom_kernels.select import NoBackendError, plan_with

# Resolved at first use: `atom_kernels.protocols` must be importable without torch. `select` itself is imported from
# `atom_kernels.select`: here the name is the module's.
__all__ = [
    "Backend",
    "BoundPlan",
    "NoBackendError",
    "Op",
    "Plan",
    "PlanRow",
    "Platform",
    "Tolerance",
    "WeightError",
    "WeightLayout",
    "WeightSpec",
    "Work",
    "all_ops",
    "detect_platform",
    "plan_with",
]

__getattr__ = lazy_names(__name__)
