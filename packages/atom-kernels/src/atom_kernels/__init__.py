"""Operators for LLM inference: one contract each, a torch reference, and the fastest implementation that runs here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_kernels.operator import Backend, Layout, Op, Tolerance, WeightError, WeightSpec, Work
    from atom_kernels.plan import BoundPlan, Plan, PlanRow
    from atom_kernels.platform import Platform, detect_platform
    from atom_kernels.registry import all_ops
    from atom_kernels.select import NoBackendError, plan_with

# Resolved at first use: `atom_kernels.protocols` must be importable without torch. `select` itself is imported from
# `atom_kernels.select`: here the name is the module's.
_HOMES = {
    "operator": ("Backend", "Layout", "Op", "Tolerance", "WeightError", "WeightSpec", "Work"),
    "plan": ("BoundPlan", "Plan", "PlanRow"),
    "platform": ("Platform", "detect_platform"),
    "registry": ("all_ops",),
    "select": ("NoBackendError", "plan_with"),
}

__all__ = [
    "Backend",
    "BoundPlan",
    "Layout",
    "NoBackendError",
    "Op",
    "Plan",
    "PlanRow",
    "Platform",
    "Tolerance",
    "WeightError",
    "WeightSpec",
    "Work",
    "all_ops",
    "detect_platform",
    "plan_with",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"atom_kernels.{module}"), name)
    raise AttributeError(f"module 'atom_kernels' has no attribute {name!r}")
