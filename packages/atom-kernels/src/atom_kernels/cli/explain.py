"""``explain``: the machine, and what each operator resolves to on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_kernels.cases import Operator, explain
from atom_kernels.operator import Op
from atom_kernels.platform import Platform


def run(ops: Sequence[Op | Operator], platform: Platform) -> int:
    """Print it; always 0."""
    for line in describe_platform(platform):
        print(line)
    for op in ops:
        print(f"\n{op.name}: {(op.contract.__doc__ or '').strip().splitlines()[0]}")
        for line in explain(op, platform):
            print(f"  {line}")
    return 0


def describe_platform(platform: Platform) -> list[str]:
    """A few lines about the machine."""
    lines = [
        f"{platform.name} ({platform.vendor}, {platform.arch}), {platform.num_cores} cores, "
        f"torch {torch.__version__} with {torch.get_num_threads()} threads",
        f"dtype      {platform.preferred_dtype}: {platform.bf16_reason}",
        f"backends   {', '.join(platform.backends)}, tried in this order",
    ]
    return lines + [f"           no {backend}: {reason}" for backend, reason in platform.unavailable]
