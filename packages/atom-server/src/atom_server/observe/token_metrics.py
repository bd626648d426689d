"""`TokenMetrics`: tokens as they come, and the seconds between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)


class TokenMetrics(Collector):
    """Counts in plain numbers what comes thousands of times a second: the library would take a lock for each.

    Args:
        prefix: what all names begin with.
        engines: the labels of each engine, by rank.
    """

    def __init__(self, prefix: str, engines: Sequence[Mapping[str, str]]) -> None:
        self._prefix, self._engines = prefix, engines
        self._num_tokens = [0] * len(engines)
        self._num_gaps = [[0] * (len(_GAPS) + 1) for _ in engines]
        self._seconds = [0.0] * len(engines)

    def take(self, engine: int, num_tokens: int, gap: float | None) -> None:
        """Count tokens that an engine, by its rank, has generated `gap` seconds after the last ones of their sample."""
        self._num_tokens[engine] += num_tokens
        if gap is not None:
            self._num_gaps[engine][bisect_left(_GAPS, gap)] += 1
            self._seconds[engine] += gap

    def collect(self) -> Iterator[Metric]:
        """The families, as the library calls a name with its values."""
        names = tuple(self._engines[0])
        tokens = CounterMetricFamily(f"{self._prefix}:generation_tokens", "Tokens generated.", labels=names)
        name = f"{self._prefix}:inter_token_latency_seconds"
        gaps = HistogramMetricFamily(name, "Between news of a sample.", labels=names)
        bounds = [*map(str, _GAPS), "+Inf"]
        for rank, labels in enumerate(self._engines):
            values = tuple(labels.values())
            tokens.add_metric(values, self._num_tokens[rank])
            buckets = list(zip(bounds, accumulate(self._num_gaps[rank]), strict=True))
            gaps.add_metric(values, buckets, sum_value=self._seconds[rank])
        yield from (tokens, gaps)
