"""Time of kernels as a served step sees them: replayed from a CUDA graph, with data that left the caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

# More than any L2 cache that a step could find its data in.
ROTATED_BYTES = 256 << 20
_LEAST_CALLS = 24
_REPLAYS = 5


def num_copies(num_bytes: int, most: int = 64) -> int:
    """Copies of data of `num_bytes` that calls take turns with, so that none finds its own in the L2 cache."""
    return max(1, min(most, -(-ROTATED_BYTES // max(num_bytes, 1))))


def graph_seconds(calls: Sequence[Callable[[], Any]], *, least_calls: int = _LEAST_CALLS) -> float:
    """Seconds of one call: the median over replays of one graph that holds all `calls` in turn, over and over.

    Args:
        calls: each does the same work on other data. They must be capturable, and are called once before.
        least_calls: how many the graph holds at least, so that its own launch does not show.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    turns = -(-least_calls // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for call in calls:
                call()
    graph.replay()
    times = []
    for _ in range(_REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times) / (turns * len(calls))
