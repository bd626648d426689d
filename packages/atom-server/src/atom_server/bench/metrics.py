"""The results of a run, under the keys that the serving benchmarks of vLLM and ROCm/ATOM write."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atom_server.bench.outcome import Outcome

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}


def summarize(
    outcomes: Sequence[Outcome],
    seconds: float,
    percentiles: Sequence[float],
    *,
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Counts, rates, and for each metric in milliseconds the mean, median, deviation and percentiles.

    Args:
        seconds: time from the first request to the end of the last.
        percentiles: numbers from 0 to 100.
        goodput: milliseconds that the metrics of a good request do not exceed.
    """
    done = [outcome for outcome in outcomes if not outcome.error]
    num_input = sum(outcome.num_input_tokens for outcome in done)
    num_output = sum(outcome.num_output_tokens for outcome in done)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "request_goodput": num_good(done, goodput) / seconds if goodput else None,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "max_output_tokens_per_s": _most_tokens_in_a_second(done),
        "max_concurrent_requests": _most_at_once(done),
    }
    for name, values in samples_of(done).items():
        result |= _spread(name, values or [0.0], percentiles)
    return result


def samples_of(done: Sequence[Outcome]) -> dict[str, list[float]]:
    """Every value of each metric in milliseconds, of requests that succeeded."""
    several = [outcome for outcome in done if outcome.num_output_tokens > 1]
    seconds = {
        "ttft": [outcome.ttft for outcome in done],
        "tpot": [outcome.tpot for outcome in several],
        "itl": [gap for outcome in done for gap in outcome.gaps],
        "e2el": [outcome.latency for outcome in done],
    }
    return {name: [1e3 * value for value in values] for name, values in seconds.items()}


def num_good(done: Sequence[Outcome], limits: Mapping[str, float]) -> int:
    """Requests whose metrics ("ttft", "tpot", "e2el") are all within their limits, in milliseconds."""

    def is_good(outcome: Outcome) -> bool:
        values = {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2el": outcome.latency}
        return all(1e3 * values[name] <= limit for name, limit in limits.items())

    return sum(map(is_good, done))


def arrivals(outcome: Outcome) -> Iterator[tuple[float, float]]:
    """When something came, from the start of the run, and how many tokens it was: a chunk may hold several."""
    share = outcome.num_output_tokens / (len(outcome.gaps) + 1)
    moment = outcome.sent + outcome.ttft
    yield moment, share
    for gap in outcome.gaps:
        moment += gap
        yield moment, share


def table(result: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """The result for people."""
    rates = f"{result['request_throughput']:.2f} requests/s, {result['output_throughput']:.1f} output tokens/s"
    rows = [
        ("requests", f"{result['completed']} completed, {result['failed']} failed in {result['duration']:.2f} s"),
        ("tokens", f"{result['total_input_tokens']} in, {result['total_output_tokens']} out"),
        ("throughput", f"{rates}, {result['total_token_throughput']:.1f} tokens/s in all"),
    ]
    if result["request_goodput"] is not None:
        rows.append(("goodput", f"{result['request_goodput']:.2f} requests/s within their limits"))
    for name in metrics:
        values = {"mean": result[f"mean_{name}_ms"], "median": result[f"median_{name}_ms"]}
        values |= {f"p{percentile:g}": result[f"p{percentile:g}_{name}_ms"] for percentile in percentiles}
        rows.append((TITLES[name], ", ".join(f"{label} {value:.2f} ms" for label, value in values.items())))
    return "\n".join(f"{label:<22} {text}" for label, text in rows)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` percent of `values` lie, between neighbors by their distance."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(name: str, values: list[float], percentiles: Sequence[float]) -> dict[str, float]:
    spread = {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
    }
    return spread | {f"p{share:g}_{name}_ms": percentile(values, share) for share in percentiles}


def _most_tokens_in_a_second(done: Sequence[Outcome]) -> float:
    """The most tokens that came within one second of the run, counted from its start."""
    seconds: defaultdict[int, float] = defaultdict(float)
    for outcome in done:
        for moment, count in arrivals(outcome):
            seconds[int(moment)] += count
    return max(seconds.values(), default=0.0)


def _most_at_once(done: Sequence[Outcome]) -> int:
    changes = [(outcome.sent, 1) for outcome in done]
    changes += [(outcome.sent + outcome.latency, -1) for outcome in done]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
