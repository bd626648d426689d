"""What is measured, in terms of one call: generate so many tokens for each of these prompts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SCENARIOS = ("start", "offline", "decode", "greedy", "prefill", "prefix", "idle")
SHORT, LONG = 8, 136
TEMPERATURE = 0.6


class Engine(Protocol):
    """An engine in this process; all sides are timed through this one call."""

    name: str
    version: str

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        """Wait until each prompt has got exactly its number of tokens."""
        ...


class Figure(NamedTuple):
    """One measured quantity: `values` holds each repeat."""

    figure: str
    unit: str
    values: list[float]


@dataclass(frozen=True)
class Sizes:
    """Of the scenarios; see the flags of the command."""

    batch_sizes: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int]
    repeats: int


def measure(engine: Engine, scenarios: Sequence[str], sizes: Sizes) -> Iterator[Figure]:
    """Every figure of `scenarios`, as soon as it is known. The first run of each is not timed."""
    numbers = random.Random(0)
    for scenario in scenarios:
        if scenario == "offline":
            yield _offline(engine, sizes.repeats)
        elif scenario in ("decode", "greedy"):
            for context in sizes.contexts:
                for batch_size in sizes.batch_sizes:
                    yield _decode(engine, numbers, batch_size, context, sizes.repeats, greedy=scenario == "greedy")
        elif scenario == "prefill":
            for length in sizes.prompts:
                yield _prefill(engine, numbers, length, sizes.repeats)
        elif scenario == "prefix":
            yield from _prefix(engine, numbers)
        elif scenario == "idle":
            yield _idle(engine, numbers)


def random_prompt(numbers: random.Random, length: int) -> list[int]:
    """Token ids that every vocabulary has."""
    return [numbers.randint(0, 10000) for _ in range(length)]


def _offline(engine: Engine, repeats: int) -> Figure:
    """256 requests of 100 to 1024 tokens in and out: the workload by which nano-vllm measures itself (seed 0)."""
    numbers = random.Random(0)
    prompts = [random_prompt(numbers, numbers.randint(100, 1024)) for _ in range(256)]
    lengths = [numbers.randint(100, 1024) for _ in range(256)]
    seconds = _timed(lambda: engine.generate(prompts, lengths, TEMPERATURE), repeats)
    return Figure("offline, 256 requests", "tokens/s", [sum(lengths) / value for value in seconds])


def _decode(
    engine: Engine, numbers: random.Random, batch_size: int, context: int, repeats: int, *, greedy: bool
) -> Figure:
    """Mean of 128 decode steps: what generating 136 tokens takes longer than generating 8."""
    temperature = 0.0 if greedy else TEMPERATURE

    def seconds_for(num_tokens: int) -> float:
        prompts = [random_prompt(numbers, context) for _ in range(batch_size)]
        started = time.perf_counter()
        engine.generate(prompts, [num_tokens] * batch_size, temperature)
        return time.perf_counter() - started

    seconds_for(SHORT)
    values = [1e3 * (seconds_for(LONG) - seconds_for(SHORT)) / (LONG - SHORT) for _ in range(repeats)]
    kind = "greedy decode" if greedy else "decode"
    return Figure(f"{kind} step, batch {batch_size}, context {context}", "ms", values)


def _prefill(engine: Engine, numbers: random.Random, length: int, repeats: int) -> Figure:
    """One prompt, one token, as the caller sees it."""
    seconds = _timed(lambda: engine.generate([random_prompt(numbers, length)], [1], TEMPERATURE), max(repeats, 5))
    return Figure(f"prefill of {length}", "ms", [1e3 * value for value in seconds])


def _prefix(engine: Engine, numbers: random.Random) -> Iterator[Figure]:
    """64 prompts that share 4096 tokens and have 128 of their own; cold, then with the cache warm."""
    engine.generate([random_prompt(numbers, 4224)] * 2, [128] * 2, TEMPERATURE)
    shared = random_prompt(numbers, 4096)
    for state in ("cold", "warm"):
        prompts = [shared + random_prompt(numbers, 128) for _ in range(64)]
        started = time.perf_counter()
        engine.generate(prompts, [128] * 64, TEMPERATURE)
        yield Figure(f"64 prompts of one prefix, {state}", "s", [time.perf_counter() - started])


def _idle(engine: Engine, numbers: random.Random, batch_size: int = 32, context: int = 1024) -> Figure:
    """Share of the time in which the GPU runs nothing, over the last half of a run of decode steps."""
    import torch

    prompts = [random_prompt(numbers, context) for _ in range(batch_size)]
    engine.generate(prompts, [SHORT] * batch_size, TEMPERATURE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        engine.generate(prompts, [LONG] * batch_size, TEMPERATURE)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if str(event.device_type).endswith("CUDA")
    )
    return Figure(f"GPU idle in decode, batch {batch_size}", "%", [100 * (1 - busy_share(spans[len(spans) // 2 :]))])


def busy_share(spans: Sequence[tuple[float, float]]) -> float:
    """Of the time from the first start to the last end, how much lies in any of `spans`, which are sorted."""
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - spans[0][0])


def _timed(action: Callable[[], None], repeats: int) -> list[float]:
    action()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return seconds
