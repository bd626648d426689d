"""Every operator of the package: what the command line walks over and the tests hold to account."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_kernels.operator import Op

# Each of these has `OPS`, a tuple of `Op`.
OP_MODULES = (
    "atom_kernels.norm",
    "atom_kernels.reduce",
    "atom_kernels.rotary",
    "atom_kernels.activation.ops",
    "atom_kernels.linear",
    "atom_kernels.head_product",
    "atom_kernels.adapters",
    "atom_kernels.moe.ops",
    "atom_kernels.embedding",
    "atom_kernels.attention.ops",
    "atom_kernels.attention.mla.ops",
    "atom_kernels.attention.index.ops",
    "atom_kernels.attention.sparse.ops",
    "atom_kernels.attention.encoder.ops",
    "atom_kernels.attention.context.ops",
    "atom_kernels.sampling",
    "atom_kernels.step_inputs",
    "atom_kernels.delta",
)


def all_ops() -> dict[str, Op]:
    """All operators by name.

    Raises:
        ValueError: two operators have one name.
    """
    ops: dict[str, Op] = {}
    for module in OP_MODULES:
        for op in importlib.import_module(module).OPS:
            if op.name in ops:
                raise ValueError(f"two operators are called {op.name}")
            ops[op.name] = op
    return ops
