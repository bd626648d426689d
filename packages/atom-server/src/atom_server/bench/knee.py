"""The knee of a curve of throughput against latency: beyond it, more load buys little throughput for much latency."""

from __future__ import annotations

from collections.abc import Sequence


def knee(points: Sequence[tuple[float, float]]) -> int:
    """The index of the point that lies furthest above the chord from the first to the last.

    Args:
        points: (latency, throughput) in order of load. Both are scaled to [0, 1] first, as the Kneedle algorithm does
            (Satopaa et al., 2011).
    """
    latencies, rates = zip(*points, strict=True)
    heights = [_scaled(rate, rates) - _scaled(latency, latencies) for latency, rate in points]
    return max(range(len(points)), key=lambda index: heights[index])


def _scaled(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    return (value - low) / (high - low) if high > low else 0.0
