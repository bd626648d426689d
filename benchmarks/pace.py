"""The client of `atom bench serve` against a server of an exact pace: how much it reads, and how truly it times."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import clients, documents, machine, paced_server, report, tables
from benchmarks.server_process import ServerProcess, free_port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks pace`."""
    parser.add_argument("--streams", type=int, nargs="+", default=[1000], help="at once")
    parser.add_argument("--events-per-second", type=float, nargs="+", default=[20000.0], help="of all streams together")
    parser.add_argument("--seconds", type=float, default=10.0, help="that each stream lasts")
    parser.add_argument("--turns", type=int, default=3)
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    idle = machine.idle_share()
    loads = [(streams, rate) for streams in options.streams for rate in options.events_per_second]
    taken = [_measure(streams, rate, options) for streams, rate in loads]
    settings = documents.flags_of(options, "seconds", "turns")
    results, others = [result for result, _ in taken], [share for _, share in taken]
    document = documents.document_of("pace", options, settings, idle=idle, others=others, results=results)
    print(tables.pace_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _measure(streams: int, rate: float, options: argparse.Namespace) -> tuple[dict[str, Any], float | None]:
    """One load: what it truly was, and what the client found of it. With it, what others took of the machine."""
    port, interval = free_port(), streams / rate
    command = [sys.executable, paced_server.__file__, "--port", str(port), "--interval", str(interval)]
    server = ServerProcess(command, port, ready="/v1/models")
    interference = machine.Interference(server.pids)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            tokens = max(2, round(options.seconds / interval))
            turns = [_turn(port, streams, tokens, Path(scratch)) for _ in range(options.turns)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/late", timeout=30) as answer:
            late = json.load(answer)
    finally:
        server.close()
    result = {
        "streams": streams,
        "asked": {"events_per_s": rate, "tpot_ms": round(1e3 * interval, 3)},
        "server_late_ms": {name: round(value, 3) for name, value in late.items()},
        "found": {name: round(statistics.median(turn[name] for turn in turns), 3) for name in turns[0]},
    }
    return result, interference.share()


def _turn(port: int, streams: int, tokens: int, folder: Path) -> dict[str, float]:
    """What the client says of one run, and the share of a core that it used."""
    prompts = clients.write_prompts(folder / "prompts.jsonl", streams, 4)
    flags = ["--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "custom", "--dataset-path", str(prompts)]
    flags += ["--custom-output-len", str(tokens), "--num-prompts", str(streams), "--max-concurrency", str(streams)]
    flags += ["--save-result", "--result-dir", str(folder), "--result-filename", "pace.json", "--model", "paced"]
    begun, used = time.perf_counter(), _seconds_of_children()
    subprocess.run(
        [sys.executable, "-m", "atom_server", "bench", "serve", *flags],
        check=True,
        stdout=sys.stderr,
        stderr=sys.stderr,
    )
    used, seconds = _seconds_of_children() - used, time.perf_counter() - begun
    found = json.loads((folder / "pace.json").read_text())
    if found["failed"]:
        raise RuntimeError(f"the client lost {found['failed']} of {streams} streams")
    names = ("median_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms")
    return {name: found[name] for name in names} | {
        "events_per_s": found["total_output_tokens"] / found["duration"],
        "share_of_a_core": used / seconds,
    }


def _seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system
