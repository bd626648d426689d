"""What it costs that ranks exchange on a CPU: so many of one thread each beside one process with as many threads."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from benchmarks import documents, machine, report, timing
from benchmarks.offline import Scenario
from benchmarks.sides import SideProcess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks ranks`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=2, help="ranks, and cores that are used")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], help="requests that decode at once")
    parser.add_argument("--context", type=int, default=256, help="tokens of each request before decoding starts")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512], help="tokens of prompts")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=24, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    count = options.tensor_parallel_size
    if count > (cores := os.cpu_count() or 1):
        print(f"{count} ranks compute on as many cores, and there are {cores}: lower -tp", file=sys.stderr)
        return 1
    machine.choose_dtype(options)
    scenarios = [Scenario("decode", size, options.context) for size in options.batch_sizes]
    scenarios += [Scenario("prefill", 1, length) for length in options.prefill]
    idle = machine.idle_share()
    with contextlib.ExitStack() as running:
        sides = []
        for label, num_ranks in (("one", 1), ("ranks", count)):
            sides.append(_open(label, num_ranks, scenarios, options=options))
            running.callback(sides[-1].close)
        watched = machine.Interference([pid for side in sides for pid in machine.family(side.pid)])
        results = [_measure(scenario, sides, options) for scenario in scenarios]
        others = watched.share()
    names = ("model", "dtype", "tensor_parallel_size", "turns", "steps")
    settings = documents.flags_of(options, *names) | {"threads": count}
    document = documents.document_of("ranks", options, settings, idle=idle, others=[others], results=results)
    print(table(document))
    report.save_unless_doubtful(document, options)
    return 0


def table(document: dict[str, Any]) -> str:
    """A result in markdown, with the facts of the run under it."""
    count = document["settings"]["tensor_parallel_size"]
    rows = [("step", f"one process, {count} threads", f"{count} ranks, a thread each", "speed of the ranks")]
    for result in document["results"]:
        one, ranks = (f"{result['sides'][name]['median_ms']:.2f} ms" for name in ("one", "ranks"))
        speed = result["speed"]
        spread = f"{speed['median']:.2f} ({speed['lowest_turn']:.2f} - {speed['highest_turn']:.2f})"
        rows.append((result["scenario"], one, ranks, spread))
    return report.markdown_table(rows) + "\n\n" + report.conditions(document)


def _open(label: str, num_ranks: int, scenarios: list[Scenario], *, options: argparse.Namespace) -> SideProcess:
    longest = max(scenario.context for scenario in scenarios)
    return SideProcess(
        "atom",
        label=label,
        path=str(machine.model_path(options.model).resolve()),
        dtype=options.dtype,
        threads=options.tensor_parallel_size // num_ranks,
        max_model_len=longest + (options.turns + 1) * (options.steps + 2) + 64,
        max_num_seqs=max(scenario.batch_size for scenario in scenarios),
        tensor_parallel_size=num_ranks,
    )


def _measure(scenario: Scenario, sides: list[SideProcess], options: argparse.Namespace) -> dict[str, Any]:
    print(f"measuring {scenario.name} ...", file=sys.stderr)
    for side in sides:
        scenario.prepare(side)
    timings = timing.interleave({side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps)
    return {
        "scenario": scenario.name,
        "sides": {name: taken.summary() for name, taken in timings.items()},
        "speed": timing.ratios(timings["ranks"], timings["one"]),
    }
