"""What serving over HTTP adds to a streamed token, beside the same engine in the caller's process."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.client_process import ClientProcess
from benchmarks.server_process import Server
from benchmarks.sides import SideProcess

# Prompts are computed in several steps, so that some streams are ahead of others by that many tokens.
SPARE_TOKENS = 8
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks http`."""
    parser.add_argument("--endpoints", nargs="+", choices=sorted(PATHS), default=["chat"])
    add_stream_flags(parser)


def add_stream_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of all that measures the same streams on two sides."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=1, help="of the engine, on both sides")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16], help="streams at once")
    parser.add_argument("--context", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=64, help="timed tokens of each stream in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    path = machine.model_path(options.model)
    inline = _open_inline(path, options)
    client = ClientProcess()
    server = Server(path, server_flags(options))
    try:
        taken = [
            (endpoint, size, *_take(endpoint, size, inline, server, client, options=options))
            for endpoint in options.endpoints
            for size in options.batch_sizes
        ]
    finally:
        server.close()
        client.close()
        inline.close()
    results = [_result(endpoint, size, timings) for endpoint, size, timings, _ in taken]
    settings = documents.flags_of(options, "model", "dtype", "threads", "context", "turns", "steps")
    others = [share for *_, share in taken]
    document = documents.document_of("http", options, settings, idle=idle, others=others, results=results)
    print(tables.http_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _take(
    endpoint: str,
    batch_size: int,
    inline: SideProcess,
    server: Server,
    client: ClientProcess,
    *,
    options: argparse.Namespace,
) -> tuple[dict[str, timing.Timings], float | None]:
    """Timings of whole steps by side, and the share of the cores that other processes took meanwhile."""
    print(f"measuring {batch_size} streams of {endpoint} ...", file=sys.stderr)
    source = random.Random(0)

    def decode(warm_up: int, steps: int) -> list[float]:
        inline.prepare("decoder", batch_size=batch_size, context=options.context)
        return inline.turn(warm_up, steps)

    def stream(warm_up: int, steps: int) -> list[float]:
        num_tokens = warm_up + steps + SPARE_TOKENS
        prompts = [everyday_words(source, options.context) for _ in range(batch_size)]
        bodies = [stream_body(endpoint, prompt, num_tokens) for prompt in prompts]
        arrivals = client.arrivals(server.port, PATHS[endpoint], bodies)
        return step_seconds(arrivals, warm_up=warm_up, steps=steps)

    interference = machine.Interference([inline.pid, client.pid, *server.pids])
    sides = {"inline": decode, "http": stream}
    timings = timing.interleave(sides, turns=options.turns, steps=options.steps, warm_up=8)
    return timings, interference.share()


def step_seconds(arrivals: list[list[float]], *, warm_up: int, steps: int) -> list[float]:
    """Seconds between the times at which every stream had one more event.

    Raises:
        RuntimeError: a stream has so few events that they cannot be one for each token.
    """
    fewest = min(len(times) for times in arrivals)
    if fewest <= warm_up + steps:
        raise RuntimeError(f"a stream had {fewest} events for {warm_up + steps + SPARE_TOKENS} tokens")
    everyone = [max(times[token] for times in arrivals) for token in range(warm_up, warm_up + steps + 1)]
    return [after - before for before, after in itertools.pairwise(everyone)]


def _result(endpoint: str, batch_size: int, timings: dict[str, timing.Timings]) -> dict[str, Any]:
    ratio = timing.ratios(timings["inline"], timings["http"])
    return {
        "endpoint": endpoint,
        "batch_size": batch_size,
        "sides": {name: taken.summary() for name, taken in timings.items()},
        "overhead": {name: round(value - 1, 4) for name, value in ratio.items()},
        "added_us_per_token": round(1e6 * (timings["http"].median - timings["inline"].median) / batch_size, 1),
    }


def stream_body(endpoint: str, prompt: str, num_tokens: int) -> dict[str, Any]:
    """A request for a stream in which every token is an event."""
    said = {"prompt": prompt} if endpoint == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    # Every token is to be an event of its own: also the end of a sequence, which has no text else.
    every = {"ignore_eos": True, "skip_special_tokens": False}
    return said | every | {"stream": True, "max_tokens": num_tokens, "temperature": 0.0}


def everyday_words(source: random.Random, num_words: int) -> str:
    """Words of a language model's everyday: its answers then are whole characters, one event for each token."""
    words = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "as", "with", "his", "they", "at")
    return " ".join(source.choice(words) for _ in range(num_words))


def _open_inline(path: Path, options: argparse.Namespace) -> SideProcess:
    return SideProcess(
        "atom",
        path=str(path.resolve()),
        dtype=options.dtype,
        threads=options.threads,
        max_model_len=_max_model_len(options),
        max_num_seqs=max(options.batch_sizes),
        with_text=True,
    )


def server_flags(options: argparse.Namespace) -> list[str]:
    """Those of `atom serve` for as many streams, of as many tokens, as `options` ask for."""
    flags = f"--dtype {options.dtype} --num-threads {options.threads}"
    return [
        *flags.split(),
        "--max-model-len",
        str(_max_model_len(options)),
        "--max-num-seqs",
        str(max(options.batch_sizes)),
    ]


def _max_model_len(options: argparse.Namespace) -> int:
    return 2 * options.context + options.steps + 128
