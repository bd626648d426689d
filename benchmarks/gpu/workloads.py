"""What is measured, in terms of a few calls that every engine has."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.profiles import (
    Span,
    decode_profile,
    kernel_spans,
    kernels_of,
    middle_window,
    need_gpu,
    prefill_profile,
    steady_windows,
)
from benchmarks.gpu.protocol import Engine, Figure, Sizes
from benchmarks.picture_prompts import AGAIN, NEW, TEXT, PicturePrompts

SCENARIOS = (
    "start", "offline", "decode", "greedy", "long", "prefill", "closed", "prefix", "idle", "profile", "speculation",
    "served", "picture", "cache",
)  # fmt: skip
# A part of the scenario "speculation" that has a process of its own: no engine is closed where others are timed.
NEVER_RIGHT = "never right"
SHORT, LONG, PROFILED = 8, 136, 48
TEMPERATURE = 0.6
# Steps of which one value of a long decode is the mean.
STEPS_OF_A_VALUE = 32
# Pixels on each side of a picture, and tokens of text before it.
PICTURE_SIDE, WORDS_BEFORE_PICTURE = 1024, 32


class Measurement:
    """Measures the scenarios of one engine, and remembers steps and prefills that others refer to."""

    def __init__(self, engine: Engine, sizes: Sizes, config: Mapping[str, Any] | None = None) -> None:
        """`config` is the model's, which says how pictures stand in its prompts."""
        self._engine, self._sizes, self._config = engine, sizes, config or {}
        self._numbers = random.Random(0)
        self._known: dict[tuple[str, int, int], Figure] = {}

    def run(self, scenarios: Sequence[str]) -> Iterator[Figure]:
        """Every figure of `scenarios`, as soon as it is known. The first run of each is not timed."""
        sizes = self._sizes
        for scenario in scenarios:
            if scenario == "offline":
                yield offline(self._engine, sizes.repeats)
            elif scenario in ("decode", "greedy"):
                for context in sizes.contexts:
                    for batch_size in sizes.batch_sizes:
                        yield self._decode(batch_size, context, greedy=scenario == "greedy")
            elif scenario == "long":
                for context in sizes.long_contexts:
                    for batch_size in sizes.long_batch_sizes:
                        yield self._long_decode(batch_size, context)
            elif scenario == "prefill":
                for length in sizes.prompts:
                    yield self._prefill(length)
            elif scenario == "closed":
                yield self._closed()
            elif scenario == "prefix":
                yield from self._prefix()
            elif scenario == "idle":
                yield self._idle()
            elif scenario == "picture":
                yield from self._pictures()
            elif scenario == "cache":
                yield Figure("KV cache", "tokens", [float(self._engine.cache_tokens)], {"kind": "cache"})
            elif scenario == "profile":
                for batch_size in sizes.profiled_batch_sizes:
                    yield from self._profile_decode(batch_size, min(sizes.contexts))
                yield from self._profile_prefill(max(sizes.prompts))

    def _decode(self, batch_size: int, context: int, *, greedy: bool = False) -> Figure:
        """Mean of 128 decode steps: what generating 136 tokens takes longer than generating 8."""
        kind = "greedy decode" if greedy else "decode"
        key = (kind, batch_size, context)
        if key not in self._known:
            temperature = 0.0 if greedy else TEMPERATURE

            def seconds_for(num_tokens: int) -> float:
                prompts = self._prompts(batch_size, context)
                return _seconds(lambda: self._engine.generate(prompts, [num_tokens] * batch_size, temperature))

            name = f"{kind} step, batch {batch_size}, context {context}"
            about = {"kind": kind, "batch": batch_size, "context": context, "steps": (SHORT + LONG) // 2}
            if skipped := self._no_room(batch_size, context + LONG):
                return Figure(name, "ms", [], about, skipped)
            seconds_for(SHORT)
            repeats = range(self._sizes.repeats)
            values = [1e3 * (seconds_for(LONG) - seconds_for(SHORT)) / (LONG - SHORT) for _ in repeats]
            self._known[key] = Figure(name, "ms", values, about)
        return self._known[key]

    def _long_decode(self, batch_size: int, context: int) -> Figure:
        """Decode steps once all of long prompts are done, so that these are computed once only."""
        name = f"decode step, batch {batch_size}, context {context}"
        about = {"kind": "decode", "batch": batch_size, "context": context, "steps": (SHORT + LONG) // 2}
        if skipped := self._no_room(batch_size, context + 2 * LONG):
            return Figure(name, "ms", [], about, skipped)
        self._engine.generate(self._prompts(batch_size, 64), [SHORT] * batch_size, TEMPERATURE)
        times = self._engine.arrivals(self._prompts(batch_size, context), LONG + 1, TEMPERATURE)[SHORT:]
        parts = zip(times[::STEPS_OF_A_VALUE], times[STEPS_OF_A_VALUE::STEPS_OF_A_VALUE], strict=False)
        return Figure(name, "ms", [1e3 * (end - start) / STEPS_OF_A_VALUE for start, end in parts], about)

    def _prefill(self, length: int) -> Figure:
        """One prompt, one token, as the caller sees it."""
        key = ("prefill", 1, length)
        if key not in self._known:
            repeats = max(self._sizes.repeats, 5)
            # Drawing thousands of token ids takes milliseconds: not the engine's.
            drawn = [self._prompts(1, length) for _ in range(1 + repeats)]
            seconds = _timed(lambda: self._engine.generate(drawn.pop(), [1], TEMPERATURE), repeats)
            about = {"kind": "prefill", "tokens": length}
            self._known[key] = Figure(f"prefill of {length}", "ms", [1e3 * value for value in seconds], about)
        return self._known[key]

    def _closed(self) -> Figure:
        """Short requests, a new one for each that ends, so that most steps have decodes and a few prompts."""
        numbers, in_flight = random.Random(1), self._sizes.in_flight
        prompts = [random_prompt(numbers, numbers.randint(16, 160)) for _ in range(4 * in_flight)]
        lengths = [numbers.randint(8, 40) for _ in prompts]

        def run() -> None:
            self._engine.closed_loop(prompts, lengths, in_flight, TEMPERATURE)

        seconds = _timed(run, self._sizes.repeats)
        rates = [sum(lengths) / value for value in seconds]
        about = {"kind": "closed", "in_flight": in_flight}
        return Figure(f"closed loop, {in_flight} requests at a time", "tokens/s", rates, about)

    def _prefix(self) -> Iterator[Figure]:
        """64 prompts that share 4096 tokens and have 128 of their own; cold, then with the cache warm."""
        self._engine.generate(self._prompts(2, 4224), [128] * 2, TEMPERATURE)
        shared = random_prompt(self._numbers, 4096)
        for state in ("cold", "warm"):
            prompts = [shared + own for own in self._prompts(64, 128)]
            seconds = _seconds(lambda prompts=prompts: self._engine.generate(prompts, [128] * 64, TEMPERATURE))
            yield Figure(f"64 prompts of one prefix, {state}", "s", [seconds], {"kind": "prefix", "state": state})

    def _idle(self, batch_size: int = 32, context: int = 1024) -> Figure:
        """Shares of the time in which the GPU runs nothing, in parts of the last half of a run of decode steps."""
        need_gpu()
        self._engine.generate(self._prompts(batch_size, context), [SHORT] * batch_size, TEMPERATURE)
        prompts = self._prompts(batch_size, context)
        spans = kernel_spans(lambda: self._engine.generate(prompts, [LONG] * batch_size, TEMPERATURE))
        idle = [100 * window.idle_share for window in steady_windows(spans, LONG - 1)]
        return Figure(f"GPU idle in decode, batch {batch_size}", "%", idle, {"kind": "idle", "batch": batch_size})

    def _profile_decode(self, batch_size: int, context: int) -> Iterator[Figure]:
        step = self._decode(batch_size, context)
        if not step.values:
            return
        prompts = self._prompts(batch_size, context)
        spans = kernel_spans(lambda: self._engine.generate(prompts, [PROFILED] * batch_size, TEMPERATURE))
        steps = middle_window(steady_windows(spans, PROFILED - 1))
        yield from _profile(step.figure, decode_profile(steps, _middle(step.values)), steps.spans)

    def _profile_prefill(self, length: int) -> Iterator[Figure]:
        seen = self._prefill(length)
        prompts = self._prompts(1, length)
        spans = kernel_spans(lambda: self._engine.generate(prompts, [1], TEMPERATURE))
        yield from _profile(seen.figure, prefill_profile(spans, _middle(seen.values)), spans)

    def _pictures(self) -> Iterator[Figure]:
        """From a prompt to its first token, as the caller sees it, with pictures and with as many tokens of text."""
        if "vision_config" not in self._config:
            raise ValueError("the model reads text alone: name one that sees")
        prompts = PicturePrompts.of_config(self._config, side=PICTURE_SIDE, num_text=WORDS_BEFORE_PICTURE)
        for what, make in {NEW: prompts.new, AGAIN: prompts.again, TEXT: prompts.text}.items():
            made = [make() for _ in range(3 + 2 * self._sizes.repeats)]
            for _ in range(2):
                self._engine.first_token(made.pop())
            seconds = _timed(lambda made=made: self._engine.first_token(made.pop()), len(made) - 1)
            about = {"kind": "picture", "tokens": prompts.num_tokens, "prompt": what}
            figure = f"first token of {prompts.num_tokens}, {what}"
            yield Figure(figure, "ms", [1e3 * value for value in seconds], about)

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return [random_prompt(self._numbers, length) for _ in range(count)]

    def _no_room(self, batch_size: int, num_tokens: int) -> str | None:
        """Why requests cannot all run at once: they would queue, and the time would be that of fewer."""
        wanted, held = batch_size * num_tokens, self._engine.cache_tokens
        return f"the KV cache holds {held} tokens, not {wanted}" if wanted > held else None


def random_prompt(numbers: random.Random, length: int) -> list[int]:
    """Token ids that every vocabulary has."""
    return [numbers.randint(0, 10000) for _ in range(length)]


def offline_lengths() -> tuple[list[list[int]], list[int]]:
    """256 requests of 100 to 1024 tokens in and out: the workload by which nano-vllm measures itself (seed 0)."""
    numbers = random.Random(0)
    prompts = [random_prompt(numbers, numbers.randint(100, 1024)) for _ in range(256)]
    return prompts, [numbers.randint(100, 1024) for _ in range(256)]


def offline(engine: Engine, repeats: int) -> Figure:
    """Tokens generated in a second, all requests given at once."""
    prompts, lengths = offline_lengths()
    # All prompts and all shapes of steps, in an eighth of the tokens.
    engine.generate(prompts, [length // 8 for length in lengths], TEMPERATURE)
    seconds = [_seconds(lambda: engine.generate(prompts, lengths, TEMPERATURE)) for _ in range(repeats)]
    rates = [sum(lengths) / value for value in seconds]
    return Figure("offline, 256 requests", "tokens/s", rates, {"kind": "offline"})


def _profile(of: str, parts: dict[str, float], spans: Sequence[Span]) -> Iterator[Figure]:
    for part, milliseconds in parts.items():
        about: dict[str, Any] = {"kind": "profile", "of": of, "part": part, "kernels": kernels_of(part, spans)}
        yield Figure(f"{of}: {part}", "ms", [milliseconds], about)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _timed(action: Callable[[], None], repeats: int) -> list[float]:
    action()
    return [_seconds(action) for _ in range(repeats)]


def _seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
