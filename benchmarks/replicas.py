"""What one front costs before several engines (`-dp N`): the same streams to one server of all, or to one of each."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from functools import partial
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.client_process import ClientProcess
from benchmarks.http_overhead import PATHS, everyday_words, stream_body
from benchmarks.server_process import Server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks replicas`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--streams", type=int, nargs="+", default=[16], help="at once, to all engines together")
    parser.add_argument("--context", type=int, default=64, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side")
    parser.add_argument("--loads", type=int, default=2, help="timed loads in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    path = machine.model_path(options.model)
    with contextlib.ExitStack() as running:
        client = ClientProcess()
        running.callback(client.close)

        def start(*more: str) -> Server:
            server = Server(path, [*_flags(options), *more])
            running.callback(server.close)
            return server

        sides = {
            "apart": [start() for _ in range(options.engines)],
            "together": [start("--data-parallel-size", str(options.engines))],
        }
        interference = machine.Interference([client.pid, *(p for all in sides.values() for s in all for p in s.pids)])
        results = [_measure(streams, sides, client, options=options) for streams in options.streams]
        others = interference.share()
    settings = documents.flags_of(
        options, "model", "dtype", "engines", "threads", "context", "tokens", "turns", "loads"
    )
    document = documents.document_of("replicas", options, settings, idle=idle, others=[others], results=results)
    print(tables.replicas_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _measure(
    streams: int, sides: dict[str, list[Server]], client: ClientProcess, *, options: argparse.Namespace
) -> dict[str, Any]:
    """Times of whole loads, from the first request to the last token, by side."""
    print(f"measuring {streams} streams ...", file=sys.stderr)
    source = random.Random(0)

    def load(servers: list[Server]) -> None:
        prompts = [everyday_words(source, options.context) for _ in range(streams)]
        bodies = [stream_body("completions", prompt, options.tokens) for prompt in prompts]
        arrivals = client.arrivals([server.port for server in servers], PATHS["completions"], bodies)
        if not all(arrivals):
            raise RuntimeError("a stream had no events: its request was refused")

    turns = {name: partial(timing.take_turn, partial(load, servers)) for name, servers in sides.items()}
    timings = timing.interleave(turns, turns=options.turns, steps=options.loads, warm_up=1)
    ratio = timing.ratios(timings["apart"], timings["together"])
    return {
        "streams": streams,
        "sides": {name: taken.summary() for name, taken in timings.items()},
        "overhead": {name: round(value - 1, 4) for name, value in ratio.items()},
    }


def _flags(options: argparse.Namespace) -> list[str]:
    flags = {
        "--dtype": options.dtype,
        "--num-threads": options.threads,
        "--max-model-len": 2 * options.context + options.tokens + 64,
        "--max-num-seqs": max(options.streams),
    }
    return [str(part) for pair in flags.items() for part in pair]
