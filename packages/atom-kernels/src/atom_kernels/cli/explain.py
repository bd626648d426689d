"""``explain``: the machine, and what each operator resolves to on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_kernels.aiter.report import describe_api, describe_installation
from atom_kernels.cases import Operator, explain
from atom_kernels.operator import Op
from atom_kernels.platform import Platform


def run(ops: Sequence[Op | Operator], platform: Platform, *, is_simulated: bool = False) -> int:
    """Print it; always 0."""
    for line in describe_platform(platform, is_simulated=is_simulated):
        print(line)
    for op in ops:
        print(f"\n{op.name}: {(op.contract.__doc__ or '').strip().splitlines()[0]}")
        for line in explain(op, platform):
            print(f"  {line}")
    return 0


def describe_platform(platform: Platform, *, is_simulated: bool = False) -> list[str]:
    """A few lines about the machine; for a simulated one, only what follows from its name."""
    if is_simulated:
        lines = [f"{platform.name} ({platform.vendor}, {platform.arch}), which need not be this machine"]
    else:
        lines = [
            f"{platform.name} ({platform.vendor}, {platform.arch}), {platform.num_cores} cores, "
            f"torch {torch.__version__} with {torch.get_num_threads()} threads"
        ]
    lines += describe_api(platform.aiter) if is_simulated and platform.aiter else describe_installation()
    lines.append(f"dtype      {platform.preferred_dtype}: {platform.bf16_reason}")
    lines.append(f"backends   {', '.join(platform.backends)}, tried in this order")
    return lines + [f"           no {backend}: {reason}" for backend, reason in platform.unavailable]
