"""``bench``: time of every usable backend beside what this machine could do at best, both measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.cases import Operator, bench_cases
from atom_kernels.cli.explain import describe_platform
from atom_kernels.operator import Op, Work
from atom_kernels.platform import Platform


@dataclass(frozen=True)
class Roofline:
    """Best rates seen on this machine: bytes read from memory, bytes from the caches, matmul operations, a second."""

    memory_rate: float
    cache_rate: float
    cache_bytes: int
    flop_rate: float

    def best_seconds(self, work: Work) -> float:
        """No implementation can be faster than this, if its data comes from where it must lie."""
        # What fits in the caches stays there over the repetitions of a benchmark.
        rate = self.cache_rate if work.num_bytes <= self.cache_bytes else self.memory_rate
        return max(work.num_bytes / rate, work.flops / self.flop_rate)


def run(ops: Sequence[Op | Operator], platform: Platform, *, rows: int | None = None, seconds: float = 0.2) -> int:
    """Print a table; always 0."""
    with torch.inference_mode():
        for line in describe_platform(platform):
            print(line)
        roofline = measure_roofline(platform)
        print(
            f"roofline   {roofline.memory_rate / 1e9:.1f} GB/s from memory, {roofline.cache_rate / 1e9:.1f} GB/s for "
            f"up to {roofline.cache_bytes >> 20} MiB, {roofline.flop_rate / 1e12:.2f} TFLOP/s "
            f"in {platform.preferred_dtype}"
        )
        print(f"\n{'backend':<42}{'us':>10}{'roofline':>10}{'x torch':>9}")
        for op in ops:
            _bench_op(op, platform, roofline, rows=rows, seconds=seconds)
    return 0


def _bench_op(op: Op | Operator, platform: Platform, roofline: Roofline, *, rows: int | None, seconds: float) -> None:
    label = None
    for case in bench_cases(op, platform):
        if rows is not None and not case.label.endswith(f"rows={rows}"):
            continue
        if case.label != label:
            label = case.label
            print(f"{op.name}: {label}")
        elapsed, baseline = time_interleaved((case.run, case.baseline), platform, seconds)
        share = roofline.best_seconds(case.work) / elapsed
        print(f"  {case.backend:<40}{elapsed * 1e6:>10.1f}{share:>9.0%} {baseline / elapsed:>8.2f}")


def measure_roofline(platform: Platform) -> Roofline:
    """About a second: sums of a large and a small array, and a square matmul in the preferred dtype."""
    device = platform.device
    large = torch.ones((256 << 20) // 4, device=device)
    small = torch.ones((4 << 20) // 4, device=device)
    size = 1536 if device == "cpu" else 8192
    square = torch.ones(size, size, device=device, dtype=getattr(torch, platform.preferred_dtype))
    reading, cached, multiplying = (
        time_interleaved((function,), platform, 0.3)[0]
        for function in (lambda: large.sum(), lambda: small.sum(), lambda: square @ square)
    )
    return Roofline(
        memory_rate=large.nbytes / reading,
        cache_rate=max(small.nbytes / cached, large.nbytes / reading),
        cache_bytes=small.nbytes,
        flop_rate=2 * size**3 / multiplying,
    )


def time_interleaved(functions: Sequence[Callable[[], Any]], platform: Platform, seconds: float) -> list[float]:
    """Best seconds a call of each function; batches take turns, so that a busy moment hits all alike."""
    synchronize = torch.cuda.synchronize if platform.device == "cuda" else lambda: None
    counts = []
    for function in functions:
        function()
        once = _time(function, 1, synchronize)
        counts.append(max(1, int(0.002 / max(once, 1e-7))))
    best = [float("inf")] * len(functions)
    stop = time.perf_counter() + seconds
    while True:
        for index, function in enumerate(functions):
            best[index] = min(best[index], _time(function, counts[index], synchronize))
        if time.perf_counter() > stop:
            return best


def _time(function: Callable[[], Any], count: int, synchronize: Callable[[], None]) -> float:
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        function()
    synchronize()
    return (time.perf_counter() - start) / count
