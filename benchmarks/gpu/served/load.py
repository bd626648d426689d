"""Streams that a server answers, as many at a time for as long as a part of the measurement lasts."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult

from atom_server.bench.http_exchange import exchange, request_bytes
from benchmarks.client_process import EVENT
from benchmarks.gpu.workloads import TEMPERATURE, random_prompt

PATH = "/v1/completions"
# Requests that are ready when a part begins, for each stream; later ones are made as they are needed.
WAVES = 8


@dataclass(frozen=True)
class Workload:
    """Requests of one kind.

    Attributes:
        name: in words.
        at_a_time: streams that are open.
        tokens_in, tokens_out: what a request has.
        num_shared: tokens with which all prompts begin.
    """

    name: str
    at_a_time: int
    tokens_in: int
    tokens_out: int
    num_shared: int = 0

    def bodies(self, model: str, numbers: random.Random) -> Iterator[dict[str, Any]]:
        """Requests without end, whose prompts differ behind what they share."""
        shared = random_prompt(random.Random(self.name), self.num_shared)
        while True:
            yield {
                "model": model,
                "prompt": shared + random_prompt(numbers, self.tokens_in - self.num_shared),
                "max_tokens": self.tokens_out,
                "temperature": TEMPERATURE,
                "ignore_eos": True,
                "stream": True,
            }


def workloads(num_streams: int) -> tuple[Workload, ...]:
    """What is measured, with so many streams, and four times as many of short requests."""
    return (
        Workload("1024 in, 256 out", num_streams, 1024, 256),
        Workload("1024 in, half of it shared, 256 out", num_streams, 1024, 256, 512),
        Workload(f"64 in, 64 out, {4 * num_streams} at a time", 4 * num_streams, 64, 64),
    )


@dataclass
class Stream:
    """An answer: when its request was sent, when its events came, and whether it came to its end."""

    started: float
    times: list[float] = field(default_factory=list)
    is_whole: bool = False


@dataclass(frozen=True)
class Part:
    """What was seen of a workload between two moments.

    Attributes:
        streams: all that began.
        began, ended: times of `time.perf_counter`.
        tokens_out: how many a whole answer has.
    """

    streams: Sequence[Stream]
    began: float
    ended: float
    tokens_out: int

    @property
    def first_tokens(self) -> list[float]:
        """Seconds until each stream had its first token, rising; one without any has waited to the end."""
        return sorted((stream.times or [self.ended])[0] - stream.started for stream in self.streams)

    @property
    def tokens_per_second(self) -> float:
        """An event may have several tokens, so only of answers that were cut off events are counted."""
        numbers = [self.tokens_out if one.is_whole else min(len(one.times), self.tokens_out) for one in self.streams]
        return sum(numbers) / (self.ended - self.began)

    @property
    def longest_gap(self) -> float:
        """Seconds between two events of a stream, at most; a stream that was cut off has waited to the end."""
        gaps = [0.0]
        for stream in self.streams:
            times = stream.times if stream.is_whole else [*stream.times, self.ended]
            gaps += [after - before for before, after in itertools.pairwise(times)]
        return max(gaps)


async def run_part(url: SplitResult, workload: Workload, model: str, *, seconds: float, seed: int) -> Part:
    """Keep the workload's streams open for so long, a new one for each that ends; the last ones are cut off.

    Raises:
        StatusError, OSError: a request was refused, or the server is gone.
    """
    bodies, streams = workload.bodies(model, random.Random(seed)), []
    made = (request_bytes("POST", url, PATH, body=body) for body in bodies)
    # A prompt takes about a millisecond to draw and encode. Streams that end together would wait for each other's.
    requests = itertools.chain(list(itertools.islice(made, WAVES * workload.at_a_time)), made)
    began = time.perf_counter()

    async def keep_open() -> None:
        for request in requests:
            stream = Stream(time.perf_counter())
            streams.append(stream)

            def note(data: bytes, now: float, times: list[float] = stream.times) -> None:
                times.extend([now] * data.count(EVENT))

            await exchange(url, request, note)
            stream.is_whole = True

    tasks = [asyncio.create_task(keep_open()) for _ in range(workload.at_a_time)]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        ended = time.perf_counter()
        for task in tasks:
            if task.done():
                task.result()  # raises what went wrong
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Part(streams, began, ended, workload.tokens_out)
