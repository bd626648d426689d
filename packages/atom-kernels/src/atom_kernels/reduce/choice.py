"""Up to how many bytes each kernel sums over ranks: as measured on an architecture, else by a rule."""

from __future__ import annotations

from collections.abc import Mapping

from atom_kernels.reduce.buffers import PACKETS_BYTES
from atom_kernels.tuned import tuned_on_arch

# In the order in which they are best as tensors grow. What is larger goes to the library of the ranks.
METHODS = ("packets", "one shot", "two shots")
OPERATOR = "all_reduce"


def limits(arch: str, num_ranks: int) -> Mapping[str, int]:
    """Bytes of the largest tensor for each of `METHODS` that is best for some size.

    Files of measured limits have a row of one byte for what elsewhere is a row of a tensor.
    """
    rows = tuned_on_arch(OPERATOR, arch).get(key(num_ranks))
    if rows is None:
        return _by_rule(num_ranks)
    return {row.config["method"]: row.max_rows for row in rows if row.max_rows is not None}


def key(num_ranks: int) -> str:
    """What a number of ranks is called in files of measured limits."""
    return f"{num_ranks} ranks"


def _by_rule(num_ranks: int) -> Mapping[str, int]:
    """Packets double what every link carries; one shot sends each part to all, which two shots do not."""
    packets = min(PACKETS_BYTES, (512 << 10) // num_ranks)
    if num_ranks == 2:
        return {"packets": packets, "one shot": 4 << 20}
    return {"packets": packets, "two shots": 2 << 20}
