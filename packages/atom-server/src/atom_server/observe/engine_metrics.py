"""`EngineMetrics`: what runs, waits and is cached as of the engine's last step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from atom_core import StepStats

if TYPE_CHECKING:
    from atom_core import AsyncEngine


class EngineMetrics(Collector):
    """Asks the engine whenever somebody reads.

    Args:
        prefix: what all names begin with.
        labels: the labels that all values have.
    """

    def __init__(self, engine: AsyncEngine, prefix: str, labels: Mapping[str, str]) -> None:
        self._engine, self._prefix, self._labels = engine, prefix, dict(labels)

    def collect(self) -> Iterator[Metric]:
        """The families, as the library calls a name with its values."""
        info = self._engine.info
        stats = self._engine.stats or StepStats(0, 0, info.num_blocks, info.num_blocks, 0, 0, 0)
        used = (stats.num_blocks - stats.num_free_blocks) / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("num_requests_running", "Samples that run.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Samples that wait.", stats.num_waiting)
        waiting = {"capacity": stats.num_waiting, "grammar": stats.num_waiting_for_grammar}
        yield self._gauges("num_requests_waiting_by_reason", "Samples that wait, by what for.", "reason", waiting)
        yield self._gauge("engine_paused", "1 while an administrator has paused it.", self._engine.control.is_paused)
        seconds = self._engine.info.timings
        yield self._gauges("startup_seconds", "Seconds of each phase of the start.", "phase", seconds)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache's blocks that requests hold, 0 to 1.", used)
        kept = stats.num_kept_output_tokens
        yield self._gauge(
            "spec_decode_kept_output_tokens", "Tokens of ended requests, by which others are guessed.", kept
        )
        for name, help, value in (
            ("num_preemptions", "Requests that lost their blocks to others.", stats.num_preemptions),
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_cache_queries),
            ("prefix_cache_hits", "Tokens found there.", stats.prefix_cache_hits),
            ("forced_tokens", "Tokens that grammars left no choice about.", stats.num_forced_tokens),
            ("spec_decode_num_drafts", "Requests in steps that had draft tokens.", stats.num_drafts),
            ("spec_decode_num_draft_tokens", "Tokens that were guessed.", stats.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Guesses that were right.", stats.num_accepted_tokens),
            ("late_captures", "Graphs that were captured while a step waited for them.", stats.num_late_captures),
            ("late_compilations", "Compilations that a step waited for.", stats.num_late_compilations),
            ("engine_restarts", "Times that the engine was started anew.", self._engine.num_restarts),
            ("not_finite_logits", "Requests ended by logits or states that are not finite.", stats.num_not_finite),
        ):
            counter = CounterMetricFamily(f"{self._prefix}:{name}", help, labels=tuple(self._labels))
            counter.add_metric(tuple(self._labels.values()), value)
            yield counter
        yield self._accepted_by_position(stats.num_accepted_tokens_per_pos)
        config = {
            "block_size": str(info.block_size),
            "cache_dtype": info.kv_cache_dtype,
            "enable_prefix_caching": str(info.enable_prefix_caching),
            "num_gpu_blocks": str(info.num_blocks),
        }
        yield self._gauge("cache_config_info", "The KV cache.", 1, config)

    def _accepted_by_position(self, counts: Sequence[int]) -> CounterMetricFamily:
        name = f"{self._prefix}:spec_decode_num_accepted_tokens_per_pos"
        labels = (*self._labels, "position")
        counter = CounterMetricFamily(
            name, "Guesses that were right, by their place among those of a step.", labels=labels
        )
        for position, count in enumerate(counts):
            counter.add_metric((*self._labels.values(), str(position)), count)
        return counter

    def _gauges(self, name: str, help: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
        """A value for each value of `label`."""
        gauge = GaugeMetricFamily(f"{self._prefix}:{name}", help, labels=(*self._labels, label))
        for key, value in values.items():
            gauge.add_metric((*self._labels.values(), key), value)
        return gauge

    def _gauge(self, name: str, help: str, value: float, more: Mapping[str, str] | None = None) -> GaugeMetricFamily:
        labels = {**self._labels, **(more or {})}
        gauge = GaugeMetricFamily(f"{self._prefix}:{name}", help, labels=tuple(labels))
        gauge.add_metric(tuple(labels.values()), value)
        return gauge
