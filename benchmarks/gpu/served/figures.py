"""What is told of a server: its first seconds of service beside later ones, by workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

from atom_server.bench import event_loop
from benchmarks.gpu.protocol import Figure
from benchmarks.gpu.served.load import Part, Workload, run_part
from benchmarks.gpu.served.servers import Late

# Between two parts, for requests that were cut off to leave the server.
PAUSE_SECONDS = 0.5


def served_figures(
    port: int,
    model: str,
    workloads: Sequence[Workload],
    *,
    seconds: float,
    caches: str,
    late: Callable[[], Late | None],
) -> Iterator[Figure]:
    """Figures of a server that has just become ready: each workload in turn, then each again.

    Both times a workload begins with all its streams at once and lasts equally long, so that what the second time has
    more of is what the first one waited for.

    Args:
        seconds: how long each part lasts.
        caches: what the start found of earlier compiling.
        late: what steps have waited for so far.
    """
    url, firsts, before = urlsplit(f"http://127.0.0.1:{port}"), [], late()

    def part(workload: Workload, seed: int) -> Part:
        time.sleep(PAUSE_SECONDS)
        return event_loop.run(run_part(url, workload, model, seconds=seconds, seed=seed))

    for number, workload in enumerate(workloads):
        first, after = part(workload, number), late()
        firsts.append(first)
        yield from _first_figures(workload, first, caches)
        if before is not None and after is not None:
            for name, value in zip(
                Late._fields, (new - old for new, old in zip(after, before, strict=True)), strict=True
            ):
                yield _figure(workload, caches, f"late {name}", "", value)
        before = after
    for number, (workload, first) in enumerate(zip(workloads, firsts, strict=True), start=len(workloads)):
        steady = part(workload, number)
        yield _figure(workload, caches, "steady tokens", "tokens/s", steady.tokens_per_second)
        yield _figure(
            workload, caches, "share of steady", "%", 100 * first.tokens_per_second / steady.tokens_per_second
        )
        yield _figure(workload, caches, "longest gap, steady", "ms", 1e3 * steady.longest_gap)


def _first_figures(workload: Workload, part: Part, caches: str) -> Iterator[Figure]:
    waits = part.first_tokens
    yield _figure(workload, caches, "first token, longest", "ms", 1e3 * waits[-1])
    yield _figure(workload, caches, "first token, p99", "ms", 1e3 * waits[int(0.99 * (len(waits) - 1))])
    yield _figure(workload, caches, "first tokens", "tokens/s", part.tokens_per_second)
    yield _figure(workload, caches, "longest gap, first", "ms", 1e3 * part.longest_gap)


def _figure(workload: Workload, caches: str, what: str, unit: str, value: float) -> Figure:
    about = {"kind": "served", "workload": workload.name, "streams": workload.at_a_time, "caches": caches, "what": what}
    return Figure(f"{workload.name}, caches {caches}: {what}", unit, [value], about)
