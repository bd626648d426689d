"""`Metrics`: what has been served, under the names of vLLM's metrics, so that its dashboards and routers work.

The prefix is our own unless ``--metrics-prefix vllm`` asks for vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from atom_server.observe.engine_metrics import EngineMetrics
from atom_server.observe.token_metrics import TokenMetrics

if TYPE_CHECKING:
    from atom_core import AsyncEngine, SamplingParams
    from atom_server.generation.tallies import ServedPrompt, Tallies

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_SAMPLES = (1, 2, 5, 10, 20, 50, 100)
_REJECTED = {429: "rate_limit", 503: "unavailable"}


class Metrics:
    """Counts tokens as they come and requests as they end; what runs is asked of the engine when somebody reads.

    Counts of tokens and samples are each engine's own. What is measured of a whole request counts for the engine of its
    first prompt, and what no engine has seen for the first one.

    Args:
        prefix: what all names begin with.
        model_name: their label, beside the engine's rank.

    Attributes:
        tokens: counts those that are generated, as they come.
        loop_lag: the seconds that this process's event loop was late, whichever engine's news it was busy with.
    """

    def __init__(self, engine: AsyncEngine, *, prefix: str, model_name: str) -> None:
        # Otherwise each counter would have a second line with the time of its creation.
        disable_created_metrics()
        self._prefix = prefix
        self._engines = [{"model_name": model_name, "engine": str(status.rank)} for status in engine.engines]
        self._registry = CollectorRegistry()
        self._registry.register(EngineMetrics(engine, prefix, model_name))
        self.tokens = TokenMetrics(prefix, self._engines)
        self._registry.register(self.tokens)
        self._prompt_tokens = self._count("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = self._count("prompt_tokens_cached", "Tokens of prompts that the prefix cache had.")
        self._finished = self._counter("request_success", "Samples that ended, by reason.", "finished_reason")
        self._rejections = self._counter("admission_rejections", "Requests that were sent away, by reason.", "reason")
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        [self.loop_lag, *_] = self._histogram("event_loop_lag_seconds", "How late the server's loop is.", _LAGS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean of a request.", _STEPS)
        self._latency = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival until it runs.", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", "From there to the first token.", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the end.", _SECONDS)
        self._inference = self._histogram("request_inference_time_seconds", "From when it runs to the end.", _SECONDS)
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._request_output = self._histogram("request_generation_tokens", "Tokens generated for a request.", _TOKENS)
        self._request_max_tokens = self._histogram("request_params_max_tokens", "Tokens that it asked for.", _TOKENS)
        self._request_n = self._histogram("request_params_n", "Samples of each prompt that were asked for.", _SAMPLES)

    def take_end(self, tallies: Tallies, params: SamplingParams, prompts: Sequence[ServedPrompt]) -> None:
        """Count a request that has ended, in whatever way; `params` are its parameters."""
        reasons = tallies.finish_reasons()
        for index, prompt in enumerate(prompts):
            engine, samples = prompt.engine, range(index * params.n, (index + 1) * params.n)
            self._prompt_tokens[engine].inc(prompt.num_tokens)
            self._cached_tokens[engine].inc(prompt.num_cached_tokens)
            for sample in samples:
                self._finished.labels(**self._engines[engine], finished_reason=reasons[sample]).inc()
        first = prompts[0].engine
        self._request_prompt[first].observe(sum(prompt.num_tokens for prompt in prompts))
        self._request_output[first].observe(tallies.num_tokens)
        self._request_n[first].observe(params.n)
        if params.max_tokens is not None:
            self._request_max_tokens[first].observe(params.max_tokens)
        if tallies.latency:
            self._latency[first].observe(tallies.latency)
        if tallies.num_tokens:
            queued = tallies.queued or 0.0
            self._queue[first].observe(queued)
            self._ttft[first].observe(tallies.ttft)
            self._prefill[first].observe(tallies.ttft - queued)
            self._decode[first].observe(tallies.latency - tallies.ttft)
            self._inference[first].observe(tallies.latency - queued)
        if tallies.seconds_per_token:
            self._per_token[first].observe(tallies.seconds_per_token)

    def take_status(self, status: int) -> None:
        """Count an answer with this status."""
        if status in _REJECTED:
            self._rejections.labels(**self._engines[0], reason=_REJECTED[status]).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *more: str) -> Counter:
        return Counter(f"{self._prefix}:{name}", help, (*self._engines[0], *more), registry=self._registry)

    def _count(self, name: str, help: str) -> list[Counter]:
        """A counter for each engine."""
        counter = self._counter(name, help)
        return [counter.labels(**labels) for labels in self._engines]

    def _histogram(self, name: str, help: str, bounds: Sequence[float]) -> list[Histogram]:
        """A histogram for each engine."""
        histogram = Histogram(
            f"{self._prefix}:{name}", help, tuple(self._engines[0]), registry=self._registry, buckets=bounds
        )
        return [histogram.labels(**labels) for labels in self._engines]
