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

_ARRAY_MIB = (4, 32, 256)


@dataclass(frozen=True)
class Roofline:
    """Best rates seen in this run.

    Attributes:
        read_rates: (bytes of an array, bytes a second at which it was read again and again), smallest first: the
            repetitions of a benchmark find their data in the caches where it fits.
        flop_rate: matmul operations a second in the preferred dtype.
    """

    read_rates: tuple[tuple[int, float], ...]
    flop_rate: float

    def best_seconds(self, work: Work) -> float:
        """The least time that the measured rates allow."""
        fitting = [rate for size, rate in self.read_rates if work.num_bytes <= size]
        rate = fitting[0] if fitting else self.read_rates[-1][1]
        return max(work.num_bytes / rate, work.flops / self.flop_rate)


def run(
    ops: Sequence[Op | Operator],
    platform: Platform,
    *,
    rows: int | None = None,
    seconds: float = 0.2,
    only_backend: str | None = None,
) -> int:
    """Print a table; always 0."""
    with torch.inference_mode():
        for line in describe_platform(platform):
            print(line)
        roofline = measure_roofline(platform)
        rates = ", ".join(f"{size >> 20} MiB {rate / 1e9:.0f} GB/s" for size, rate in roofline.read_rates)
        print(f"roofline   reading {rates}; {platform.preferred_dtype} matmul {roofline.flop_rate / 1e12:.2f} TFLOP/s")
        print(f"\n{'backend':<42}{'us':>10}{'roofline':>10}{'x torch':>9}")
        for op in ops:
            _bench_op(op, platform, roofline, rows=rows, seconds=seconds, only_backend=only_backend)
    return 0


def _bench_op(
    op: Op | Operator,
    platform: Platform,
    roofline: Roofline,
    *,
    rows: int | None,
    seconds: float,
    only_backend: str | None,
) -> None:
    label = None
    for case in bench_cases(op, platform, only_backend):
        if rows is not None and not case.label.endswith(f"rows={rows}"):
            continue
        if case.label != label:
            label = case.label
            print(f"{op.name}: {label}")
        elapsed, baseline = time_interleaved((case.run, case.baseline), platform, seconds)
        share = roofline.best_seconds(case.work) / elapsed
        print(f"  {case.backend:<40}{elapsed * 1e6:>10.1f}{share:>9.0%} {baseline / elapsed:>8.2f}")


def measure_roofline(platform: Platform) -> Roofline:
    """About a second: sums of arrays of several sizes, and a square matmul in the preferred dtype."""
    arrays = [torch.ones((size << 20) // 4, device=platform.device) for size in _ARRAY_MIB]
    size = 8192 if arrays[0].is_cuda else 1024
    square = torch.ones(size, size, device=platform.device, dtype=getattr(torch, platform.preferred_dtype))
    times = time_interleaved([array.sum for array in arrays] + [lambda: square @ square], platform, 1.0)
    read_rates = tuple((array.nbytes, array.nbytes / seconds) for array, seconds in zip(arrays, times, strict=False))
    return Roofline(read_rates, 2 * size**3 / times[-1])


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
