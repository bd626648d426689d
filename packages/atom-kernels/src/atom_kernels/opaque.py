"""One opaque torch op for each operator: what torch.compile sees where eager code calls a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from atom_kernels.operator import Op

_library = torch.library.Library("atom_kernels", "DEF")
_registered: dict[str, Any] = {}


def register_opaque(op: Op, resolve: Callable[[int], Any]) -> Any:
    """``torch.ops.atom_kernels.<op>(plan_handle, *inputs)``, defined at the first call for an op.

    `resolve` turns the handle into the bound plan. Real calls go through it on every device; fake calls give empty
    outputs of the right shape and dtype.
    """
    if op.name in _registered:
        return _registered[op.name]
    arguments = op.schema.removeprefix("(")
    separator = "" if arguments.startswith(")") else ", "
    _library.define(f"{op.name}(int plan{separator}{arguments}")

    def run(plan: int, *inputs: Any) -> Any:
        return resolve(plan)(*inputs)

    def fake(plan: int, *inputs: Any) -> Any:
        return op.fake(resolve(plan).plan.problem, *inputs)

    _library.impl(op.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"atom_kernels::{op.name}", fake, lib=_library)
    _registered[op.name] = getattr(torch.ops.atom_kernels, op.name).default
    return _registered[op.name]
