"""What the GPU can do at best, measured in the same run: a large copy and a large matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """Rates of one GPU; a copy of n bytes moves 2n."""

    device: str
    copy_bytes_per_second: float
    operations_per_second: float


def measure_ceilings(num_bytes: int = 1 << 31, matrix: int = 8192) -> Ceilings:
    """Copy `num_bytes` and multiply square bf16 matrices; all memory is given back."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none")
    rates = Ceilings(torch.cuda.get_device_name(), _copy_rate(num_bytes), _matmul_rate(matrix))
    torch.cuda.empty_cache()
    return rates


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
