"""What lies in the memory of a host that ranks share, all zeros at first.

- Flags, one for each rank, a cache line apart: how many sums it has come to, as an int64.
- Places, ``[2, ranks, max_bytes]``: what each rank has to sum; calls take turns.
"""

from __future__ import annotations

import torch

from atom_kernels.protocols import HostMemory

# The largest tensor that is summed in one go: a prompt's is summed piece by piece, within the caches of most CPUs.
MAX_BYTES = 1 << 20
_LINE = 64


def num_bytes(size: int, max_bytes: int = MAX_BYTES) -> int:
    """How much memory ranks need."""
    return size * (_LINE + 2 * max_bytes)


def ranks_over(memory: torch.Tensor, size: int, max_bytes: int = MAX_BYTES) -> list[HostMemory]:
    """All ranks over memory that this process holds, for those that are its threads."""
    return [HostMemory(rank, size, memory, max_bytes) for rank in range(size)]
