"""Decode steps with one thread and with two, while other programs keep the cores busy."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.sides import SideProcess

# What libgomp does where nobody says otherwise; saying so makes our engine leave it alone.
ALWAYS_SPINNING = {"GOMP_SPINCOUNT": "300000"}
CONTEXT = 64
SIDES: dict[str, tuple[int, dict[str, str]]] = {
    "one thread": (1, {}),
    "two threads": (2, {}),
    "two threads that always spin": (2, ALWAYS_SPINNING),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks busy`."""
    parser.add_argument("--programs", type=int, nargs="+", default=[1, 2, 4], help="busy loops beside the engine")
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--turns", type=int, default=4, help="turns of each engine")
    parser.add_argument("--steps", type=int, default=24, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    if not hasattr(os, "sched_setaffinity"):
        print("needs a system on which a process can be kept to two cores", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    machine.choose_dtype(options)
    path = machine.model_path(options.model)
    idle = machine.idle_share()
    sides = _open_sides(path, options)
    watched = machine.Interference([side.pid for side in sides])
    try:
        quiet = {"programs": 0, "sides": _take(sides, options)}
        others = watched.share()
        results = [
            quiet,
            *({"programs": count, "sides": _take_beside(count, sides, options)} for count in options.programs),
        ]
    finally:
        for side in sides:
            side.close()
    settings = documents.flags_of(options, "model", "dtype", "steps") | {"threads": 2}
    document = documents.document_of("busy", options, settings, idle=idle, others=[others], results=results)
    print(tables.busy_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _open_sides(path: Path, options: argparse.Namespace) -> list[SideProcess]:
    length = CONTEXT + (options.turns + 1) * options.steps + 64
    limits = {"max_model_len": length, "max_num_seqs": 1}
    return [
        SideProcess(
            "atom",
            label=label,
            environment=added,
            path=str(path.resolve()),
            dtype=options.dtype,
            threads=threads,
            **limits,
        )
        for label, (threads, added) in SIDES.items()
    ]


def _take(sides: list[SideProcess], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Milliseconds of a step by side: the mean of each turn, so that slow steps at its beginning count."""
    for side in sides:
        side.prepare("decoder", batch_size=1, context=CONTEXT)
    turns = {side.name: side.turn for side in sides}
    timings = timing.interleave(turns, turns=options.turns, steps=options.steps, warm_up=0)
    means = {name: sorted(1e3 * statistics.fmean(turn) for turn in taken.turns) for name, taken in timings.items()}
    return {
        name: {"median_ms": round(statistics.median(each), 2), "range_ms": [round(each[0], 2), round(each[-1], 2)]}
        for name, each in means.items()
    }


def _take_beside(count: int, sides: list[SideProcess], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    print(f"measuring beside {count} busy programs ...", file=sys.stderr)
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        return _take(sides, options)
    finally:
        for program in programs:
            program.kill()
            program.wait()
