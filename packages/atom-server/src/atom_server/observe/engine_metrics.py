"""`EngineMetrics`: what runs, waits and is cached as of each engine's last step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from atom_core import STEP_SIZES, OffloadStats, StepStats
from atom_core.messages import KVTransferStats

if TYPE_CHECKING:
    from atom_core import AsyncEngine
    from atom_core.engine.replicas.status import EngineStatus

# Each counter's help text, and how to read it.
_COUNTERS: dict[str, tuple[str, Callable[[StepStats], float]]] = {
    "num_preemptions": ("Requests that lost their blocks to others.", lambda stats: stats.num_preemptions),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", lambda stats: stats.prefix_cache_queries),
    "prefix_cache_hits": ("Tokens found there.", lambda stats: stats.prefix_cache_hits),
    "forced_tokens": ("Tokens that grammars left no choice about.", lambda stats: stats.num_forced_tokens),
    "spec_decode_num_drafts": ("Requests in steps that had draft tokens.", lambda stats: stats.num_drafts),
    "spec_decode_num_draft_tokens": ("Tokens that were guessed.", lambda stats: stats.num_draft_tokens),
    "spec_decode_num_accepted_tokens": ("Guesses that were right.", lambda stats: stats.num_accepted_tokens),
    "late_captures": ("Graphs that were captured while a step waited for them.", lambda stats: stats.num_late_captures),
    "late_compilations": (
        "Compilations, and loads of what was compiled before, that a step waited for.",
        lambda stats: stats.num_late_compilations,
    ),
    "expert_moves": ("Mixtures whose experts moved between ranks.", lambda stats: stats.num_expert_moves),
    "not_finite_logits": (
        "Requests ended by logits or states that are not finite.",
        lambda stats: stats.num_not_finite,
    ),
}

_OFFLOAD_COUNTERS: dict[str, tuple[str, Callable[[OffloadStats], float]]] = {
    "kv_offload_saved_blocks": ("Blocks that left the KV cache and were kept.", lambda stats: stats.num_saved),
    "kv_offload_not_saved_blocks": (
        "Blocks that were lost, since memory had no room for them until the disk had them.",
        lambda stats: stats.num_not_saved,
    ),
    "kv_offload_failed_loads": (
        "Loads that found a damaged or unreadable block, whose tokens were computed again.",
        lambda stats: stats.num_failed,
    ),
}

_TRANSFER_COUNTERS: Mapping[str, tuple[str, Callable[[KVTransferStats], int]]] = {
    "kv_transfer_sent_prompts": ("Prompts that another engine fetched.", lambda s: s.num_sent_prompts),
    "kv_transfer_expired_prompts": ("Prompts that nobody fetched in time.", lambda s: s.num_expired_prompts),
    "kv_transfer_not_kept_prompts": ("Prompts for which there was no memory.", lambda s: s.num_not_kept_prompts),
    "kv_transfer_fetched_blocks": ("Blocks that came from another engine.", lambda s: s.num_fetched_blocks),
    "kv_transfer_failed_fetches": (
        "Prompts that should have come from another engine, and were computed here.",
        lambda s: s.num_failed_fetches,
    ),
}

Values = Iterable[tuple[Mapping[str, str], float]]
"""Labels beside the model's name, and the value under them."""


class EngineMetrics(Collector):
    """Asks the engines whenever somebody reads. Every value has the rank of its engine as a label.

    Args:
        prefix: what all names begin with.
        model_name: a label that all values have.
    """

    def __init__(self, engine: AsyncEngine, prefix: str, model_name: str) -> None:
        self._engine, self._prefix, self._model_name = engine, prefix, model_name

    def collect(self) -> Iterator[Metric]:
        """The families, as the library calls a name with its values."""
        engines = [({"engine": str(status.rank)}, status) for status in self._engine.engines]
        stats = [(labels, _stats_of(status)) for labels, status in engines]
        yield self._gauge("num_requests_running", "Samples that run.", ((e, s.num_running) for e, s in stats))
        yield self._gauge("num_requests_waiting", "Samples that wait.", ((e, s.num_waiting) for e, s in stats))
        yield self._gauge(
            "num_requests_waiting_by_reason",
            "Samples that wait, by what for.",
            ((labels | {"reason": reason}, count) for labels, one in stats for reason, count in _waiting(one)),
        )
        is_paused = self._engine.control.is_paused
        yield self._gauge(
            "engine_paused", "1 while an administrator has paused it.", ((e, is_paused) for e, _ in stats)
        )
        level = self._engine.control.sleep_level
        yield self._gauge(
            "engine_sleep_state",
            "1 for the state that it is in.",
            (
                (labels | {"sleep_state": name}, number == level)
                for labels, _ in stats
                for number, name in enumerate(("awake", "weights_offloaded", "discard_all"))
            ),
        )
        serves = ((labels, status.state == "serving") for labels, status in engines)
        yield self._gauge("engine_serving", "1 while it works, 0 while it is dead or starts anew.", serves)
        phases = (
            (labels | {"phase": phase}, seconds)
            for labels, status in engines
            for phase, seconds in self._timings(status).items()
        )
        yield self._gauge("startup_seconds", "Seconds of each phase of the start.", phases)
        used = ((e, 1 - s.num_free_blocks / s.num_blocks if s.num_blocks else 0.0) for e, s in stats)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache's blocks that requests hold, 0 to 1.", used)
        kept = ((labels, one.num_kept_output_tokens) for labels, one in stats)
        yield self._gauge(
            "spec_decode_kept_output_tokens", "Tokens of ended requests, by which others are guessed.", kept
        )
        for name, (help, count) in _COUNTERS.items():
            yield self._counter(name, help, ((e, count(s)) for e, s in stats))
        yield from self._of_offload([(labels, one.offload) for labels, one in stats if one.offload is not None])
        yield from self._of_transfer([(e, one.kv_transfer) for e, one in stats if one.kv_transfer is not None])
        restarts = ((labels, status.num_restarts) for labels, status in engines)
        yield self._counter("engine_restarts", "Times that the engine was started anew.", restarts)
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Guesses that were right, by their place among those of a step.",
            (
                (labels | {"position": str(position)}, count)
                for labels, one in stats
                for position, count in enumerate(one.num_accepted_tokens_per_pos)
            ),
            also=("position",),
        )
        yield self._step_sizes(stats)
        yield self._gauge("cache_config_info", "The KV cache.", ((e | _cache_of(s), 1) for e, s in engines))

    def _of_offload(self, stats: Sequence[tuple[dict[str, str], OffloadStats]]) -> Iterator[Metric]:
        """Blocks that left the KV cache, of the engines that keep them."""
        blocks = (
            (e | {"medium": m}, n) for e, s in stats for m, n in (("cpu", s.num_in_memory), ("fs", s.num_on_disk))
        )
        yield self._gauge("kv_offload_blocks", "Blocks kept that left the KV cache, by where they are.", blocks)
        places = (
            (e | {"medium": m}, n)
            for e, s in stats
            for m, n in (("cpu", s.num_memory_places), ("fs", s.num_disk_places))
        )
        yield self._gauge("kv_offload_capacity_blocks", "Blocks that can be kept there.", places)
        loaded = (
            (e | {"medium": m}, n)
            for e, s in stats
            for m, n in (("cpu", s.num_loaded_from_memory), ("fs", s.num_loaded_from_disk))
        )
        yield self._counter("kv_offload_loaded_blocks", "Blocks that came back.", loaded, also=("medium",))
        for name, (help, count) in _OFFLOAD_COUNTERS.items():
            yield self._counter(name, help, ((e, count(s)) for e, s in stats))

    def _step_sizes(self, stats: Sequence[tuple[dict[str, str], StepStats]]) -> HistogramMetricFamily:
        """A histogram, although vLLM's name for it ends like a counter's."""
        histogram = HistogramMetricFamily(
            f"{self._prefix}:iteration_tokens_total", "Tokens that a step computes.", labels=("model_name", "engine")
        )
        bounds = [f"{size:.1f}" for size in STEP_SIZES] + ["+Inf"]
        for labels, one in stats:
            counts = one.num_steps_by_size or [0] * len(bounds)
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            histogram.add_metric((self._model_name, *labels.values()), buckets, sum_value=one.num_step_tokens)
        return histogram

    def _of_transfer(self, stats: Sequence[tuple[dict[str, str], KVTransferStats]]) -> Iterator[Metric]:
        """Prompts that engines compute for each other, of those that do."""
        kept = ((e, s.num_kept_prompts) for e, s in stats)
        yield self._gauge("kv_transfer_kept_prompts", "Prompts that wait for another engine to fetch them.", kept)
        for name, (help, count) in _TRANSFER_COUNTERS.items():
            yield self._counter(name, help, ((e, count(s)) for e, s in stats))

    def _timings(self, status: EngineStatus) -> Mapping[str, float]:
        if status.info is None:
            return {}
        return self._engine.info.timings | status.info.timings if status.rank == 0 else status.info.timings

    def _gauge(self, name: str, help: str, values: Values) -> GaugeMetricFamily:
        found = list(values)
        names = ("model_name", *(found[0][0] if found else ()))
        gauge = GaugeMetricFamily(f"{self._prefix}:{name}", help, labels=names)
        for labels, value in found:
            gauge.add_metric((self._model_name, *labels.values()), value)
        return gauge

    def _counter(self, name: str, help: str, values: Values, *, also: tuple[str, ...] = ()) -> CounterMetricFamily:
        """A family of counts; `also` names labels beside the engine's."""
        counter = CounterMetricFamily(f"{self._prefix}:{name}", help, labels=("model_name", "engine", *also))
        for labels, value in values:
            counter.add_metric((self._model_name, *labels.values()), value)
        return counter


def _waiting(stats: StepStats) -> Iterator[tuple[str, int]]:
    """Samples that wait, by what for; those that wait for KV have their places already."""
    yield "capacity", stats.num_waiting
    yield "grammar", stats.num_waiting_for_grammar
    yield "kv", stats.num_waiting_for_kv


def _stats_of(status: EngineStatus) -> StepStats:
    """The last counts of an engine; those of an idle one where it has told none."""
    num_blocks = 0 if status.info is None else status.info.num_blocks
    return status.stats or StepStats(0, 0, num_blocks, num_blocks, 0, 0, 0)


def _cache_of(status: EngineStatus) -> dict[str, str]:
    info = status.info
    return {
        "block_size": str(info and info.block_size),
        "cache_dtype": str(info and info.kv_cache_dtype),
        "enable_prefix_caching": str(info and info.enable_prefix_caching),
        "num_gpu_blocks": str(info and info.num_blocks),
    }
