"""Steps of models made of one kind of building block, in our engine and in `transformers`, in turns."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.block_models import BLOCKS, write_model
from benchmarks.offline import Scenario
from benchmarks.sides import FALLBACK, SideProcess

OWN_FILE = "our own file"
# Threads of all sides spin for each other as the runtime has it on a quiet machine. In turns, one side's last step may
# look to ours like a busy machine: its threads would sleep for seconds, and small steps take half as long again.
_SPINNING = {"GOMP_SPINCOUNT": "300000"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks blocks`."""
    known = list(BLOCKS)
    parser.add_argument("--blocks", nargs="+", choices=known, default=known[:2], help="what the models are made of")
    parser.add_argument("--hidden", type=int, default=1024, help="hidden size")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=32, help="of which each token takes 4")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=256, help="tokens of each request before decoding starts")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="of the decode steps")
    parser.add_argument("--prefill", type=int, nargs="+", default=[512], help="prompt lengths of the prefill steps")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine in each scenario")
    parser.add_argument("--steps", type=int, default=8, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    scenarios = [Scenario("decode", size, options.context) for size in options.batch_sizes]
    scenarios += [Scenario("prefill", 1, length) for length in options.prefill]
    results = []
    with tempfile.TemporaryDirectory(prefix="atom-blocks-") as folder:
        for block in options.blocks:
            path = write_model(block, Path(folder) / block.replace(" ", "-"), options)
            results += measure(block, path, scenarios, options=options)
    ratios = [result["times_faster_than"]["transformers"]["median"] for result in results]
    sizes = f"{options.layers} layers, hidden size {options.hidden}, {options.experts} experts top-4"
    settings = {"model": f"random models of {sizes}"} | documents.flags_of(
        options, "dtype", "threads", "turns", "steps"
    )
    others = [result["share_used_by_others"] for result in results]
    document = documents.document_of("blocks", options, settings, idle=idle, others=others, results=results) | {
        "median_ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": min(ratios),
    }
    print(tables.blocks_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def measure(block: str, path: Path, scenarios: list[Scenario], *, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every scenario of one model, all sides in turns."""
    longest = max(scenario.context for scenario in scenarios) + (options.turns + 1) * (options.steps + 2) + 64
    settings = {
        "path": str(path),
        "dtype": options.dtype,
        "threads": options.threads,
        "max_model_len": longest,
        "max_num_seqs": max(scenario.batch_size for scenario in scenarios),
    }
    sides = open_sides(block, settings)
    results = []
    try:
        for scenario in scenarios:
            print(f"measuring {block}, {scenario.name} ...", file=sys.stderr)
            for side in sides:
                scenario.prepare(side)
            interference = machine.Interference([side.pid for side in sides])
            taken = timing.interleave(
                {side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps
            )
            results.append(
                {
                    "block": block,
                    "scenario": scenario.name,
                    "engines": {name: timings.summary() for name, timings in taken.items()},
                    "times_faster_than": {
                        name: timing.ratios(taken["atom"], others) for name, others in taken.items() if name != "atom"
                    },
                    "share_used_by_others": interference.share(),
                }
            )
    finally:
        for side in sides:
            side.close()
    return results


def open_sides(block: str, settings: dict[str, Any]) -> list[SideProcess]:
    """Our engine, `transformers`, and where ours runs layers of `transformers` without need, our engine as it is."""
    names = [("atom", "atom"), ("transformers", "transformers")]
    if BLOCKS[block].has_file:
        names = [(FALLBACK, "atom"), ("transformers", "transformers"), ("atom", OWN_FILE)]
    return [SideProcess(name, label=label, environment=_SPINNING, **settings) for name, label in names]
