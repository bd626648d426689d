"""What the GPU can do at best, measured in the same run: a large copy and a large matrix product."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.gpu.processes import told_by
from benchmarks.gpu.settings import own_environment

# That measuring may take, with torch's start.
_SECONDS = 120.0


@dataclass(frozen=True)
class Ceilings:
    """Rates of one GPU; a copy of n bytes moves 2n."""

    device: str
    copy_bytes_per_second: float
    operations_per_second: float


def measure_ceilings() -> Ceilings:
    """The rates of the first GPU, measured in a process of its own: torch would keep two gigabytes in this one.

    Raises:
        SystemExit: there is no GPU, or it failed.
    """
    [told] = told_by([sys.executable, "-m", __name__], own_environment(), seconds=_SECONDS)
    if "failure" in told:
        raise SystemExit(f"the GPU's best could not be measured: {told['failure']}")
    return Ceilings(**told)


def _measure(num_bytes: int = 1 << 31, matrix: int = 8192) -> Ceilings:
    """Copy `num_bytes` and multiply square bf16 matrices."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none")
    return Ceilings(torch.cuda.get_device_name(), _copy_rate(num_bytes), _matmul_rate(matrix))


def _copy_rate(num_bytes: int) -> float:
    import torch

    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2e3 * num_bytes / _milliseconds(lambda: target.copy_(source))


def _matmul_rate(size: int) -> float:
    import torch

    left = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    return 2e3 * size**3 / _milliseconds(lambda: left @ right)


def _milliseconds(action: Callable[[], object], repeats: int = 10) -> float:
    import torch

    for _ in range(3):
        action()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        action()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


if __name__ == "__main__":
    print(json.dumps(asdict(_measure())))
