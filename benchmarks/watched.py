"""What it costs to watch a server: the same streams of one that is watched and one that is not, in turns."""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counters, documents, http_overhead, machine, report, tables, timing
from benchmarks.client_process import ClientProcess
from benchmarks.server_process import Server
from benchmarks.watchers import KINDS, Watchers

WARM_UP = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks watched`."""
    parser.add_argument("--watch", nargs="+", choices=KINDS, default=list(KINDS), help="what is watched")
    http_overhead.add_stream_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    path, flags = machine.model_path(options.model), http_overhead.server_flags(options)
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        watchers, client = Watchers(options.watch, Path(folder)), ClientProcess()
        sides: dict[str, Server] = {}
        try:
            sides["unwatched"] = Server(path, flags)
            sides["watched"] = Server(path, [*flags, *watchers.flags])
            for size in options.batch_sizes:
                taken.append(_take(size, sides, watchers, client, options=options))
        finally:
            for server in sides.values():
                server.close()
            client.close()
            watchers.close()
    settings = documents.flags_of(options, "watch", "model", "dtype", "threads", "context", "turns", "steps")
    results, others = [result for result, _ in taken], [share for _, share in taken]
    document = documents.document_of("watched", options, settings, idle=idle, others=others, results=results)
    print(tables.watched_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _take(
    batch_size: int, sides: dict[str, Server], watchers: Watchers, client: ClientProcess, *, options: argparse.Namespace
) -> tuple[dict[str, Any], float | None]:
    """The result of one load, and the share of the cores that other processes took meanwhile."""
    print(f"measuring {batch_size} streams ...", file=sys.stderr)
    usage = {name: ProcessorTime(server.pids) for name, server in sides.items()}

    def turn_of(name: str) -> timing.Turn:
        source, server = random.Random(0), sides[name]

        def stream(warm_up: int, steps: int) -> list[float]:
            usage[name].mark()
            num_tokens = warm_up + steps + http_overhead.SPARE_TOKENS
            prompts = [http_overhead.everyday_words(source, options.context) for _ in range(batch_size)]
            bodies = [http_overhead.stream_body("chat", prompt, num_tokens) for prompt in prompts]
            arrivals = client.arrivals(server.port, http_overhead.PATHS["chat"], bodies)
            return http_overhead.step_seconds(arrivals, warm_up=warm_up, steps=steps)

        def watched(warm_up: int, steps: int) -> list[float]:
            with watchers.reading(server.port):
                return stream(warm_up, steps)

        return watched if name == "watched" else stream

    interference = machine.Interference([client.pid, *(pid for server in sides.values() for pid in server.pids)])
    turns = {name: turn_of(name) for name in sides}
    timings = timing.interleave(turns, turns=options.turns, steps=options.steps, warm_up=WARM_UP)
    watchers.check()
    others = interference.share()
    num_tokens = WARM_UP + options.steps + http_overhead.SPARE_TOKENS
    cpu_ms = {name: used.ms_per_step(num_tokens) for name, used in usage.items()}
    return result_of(batch_size, num_tokens, timings, cpu_ms, kinds=options.watch), others


def result_of(
    batch_size: int,
    num_tokens: int,
    timings: dict[str, timing.Timings],
    cpu_ms: dict[str, dict[str, float]],
    *,
    kinds: Sequence[str],
) -> dict[str, Any]:
    """A row of the document.

    Args:
        num_tokens: the length of each answer.
        cpu_ms: the processor time of a step, by side and process.
        kinds: what was watched.
    """
    step_ms = 1e3 * timings["unwatched"].median
    counting = counters.counting_us(batch_size, step_ms)
    telling = counters.telling_us(batch_size, step_ms, num_tokens)
    apart = counting | {kind: telling[kind] for kind in kinds}
    ratio = timing.ratios(timings["unwatched"], timings["watched"])
    return {
        "batch_size": batch_size,
        "sides": {name: taken.summary() | {"cpu_ms": cpu_ms[name]} for name, taken in timings.items()},
        "added": {name: round(value - 1, 4) for name, value in ratio.items()},
        "added_cpu_ms": {
            place: round(cpu_ms["watched"][place] - cpu_ms["unwatched"][place], 3) for place in ("server", "engine")
        },
        "apart_us": {name: round(value, 2) for name, value in apart.items()},
        "share_apart": round(sum(apart.values()) / 1e3 / step_ms, 6),
    }


class ProcessorTime:
    """What a server's processes use from each turn of theirs to the next: some of a turn's work is done behind it.

    Args:
        pids: the server's process, and those of its engine.
    """

    def __init__(self, pids: list[int]) -> None:
        self._groups = {"server": pids[:1], "engine": pids[1:]}
        self._marks: list[dict[str, float]] = []

    def mark(self) -> None:
        """A turn begins."""
        self._marks.append({place: machine.cpu_seconds(pids) for place, pids in self._groups.items()})

    def ms_per_step(self, num_steps: int) -> dict[str, float]:
        """The median over turns of so many steps, by process; all of them have ended."""
        self.mark()

        def median_of(place: str) -> float:
            used = (after[place] - before[place] for before, after in itertools.pairwise(self._marks))
            return round(1e3 * statistics.median(used) / num_steps, 3)

        return {place: median_of(place) for place in self._groups}
