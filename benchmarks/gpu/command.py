"""The command `python -m benchmarks gpu`: what is measured, and how the results are put together."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.gpu import tables
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.workloads import SCENARIOS

ENGINES = ("atom", "vllm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks gpu`."""
    parser.add_argument("scenarios", nargs="*", default=["decode", "prefill", "offline"], metavar="SCENARIO",
                        help=f"what to measure: {', '.join(SCENARIOS)}")  # fmt: skip
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="shape of the model; may be repeated")
    parser.add_argument("--vs", choices=ENGINES[1:], help="engine to measure between two runs of ours")
    parser.add_argument("--once", action="store_true", help="run ours once, not again after the other engine")
    parser.add_argument("--peer-path", help="PYTHONPATH of the other engine, where it is not installed beside ours")
    parser.add_argument("--in-vllm", action="store_true", help="ours is vLLM with atom-vllm; the other is vLLM without")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each scenario, after an untimed one")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 128], help="of the decode steps")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024], help="tokens before decoding starts")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 8192], help="tokens of the prefills")
    parser.add_argument("--num-layers", type=int, help="layers of the model, where all of them do not fit")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument(
        "--engine-option", action="append", default=[], metavar="NAME=JSON", help="setting of our engine"
    )
    parser.add_argument("--cold", action="store_true", help="start with empty caches of compiled kernels")
    parser.add_argument("--commit", help="of the sources, where this copy of them does not know it")
    parser.add_argument("--append", action="store_true", help="keep the results that the file holds already")
    parser.add_argument("--output", type=Path, help="JSON file (default: under benchmarks/results, by GPU)")


def run(options: argparse.Namespace) -> int:
    """Measure every model, print the tables, write the JSON."""
    from benchmarks.gpu.ceilings import measure_ceilings
    from benchmarks.gpu.turns import take_turns

    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        print(f"unknown scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    ceilings = measure_ceilings()
    document: dict[str, Any] = {
        "benchmark": "gpu-in-vllm" if options.in_vllm else "gpu",
        "machine": machine.describe() | {"device": ceilings.device} | _known_commit(options),
        "settings": {"dtype": "bfloat16", "max_model_len": options.max_model_len, "repeats": options.repeats},
        "copy_tb_per_s": round(ceilings.copy_bytes_per_second / 1e12, 3),
        "matmul_tflop_per_s": round(ceilings.operations_per_second / 1e12, 1),
        "results": [],
    }
    path = options.output or tables.result_path(document)
    if options.append and path.exists():
        document["results"] = json.loads(path.read_text())["results"]
    for model in options.model or ["qwen3-0.6b"]:
        document["results"] += summarize(take_turns(model, options))
        report.save(document, path)  # after each model: the next one may take long
    print(tables.gpu_table(document))
    print(f"\nwritten: {path}")
    return 0


def _known_commit(options: argparse.Namespace) -> dict[str, str]:
    return {"commit": options.commit} if options.commit else {}


def summarize(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each figure of a model: every engine's values, and ours over the peer's by medians.

    `measured` has an entry for each figure of each turn: model, turn, engine, version, figure, unit, values.
    """
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for item in measured:
        key = (item["model"], item["figure"])
        entry = entries.setdefault(
            key, {"model": item["model"], "figure": item["figure"], "unit": item["unit"], "engines": {}}
        )
        engine = entry["engines"].setdefault(item["engine"], {"version": item["version"], "turns": []})
        engine["turns"].append(item["values"])
    for entry in entries.values():
        for engine in entry["engines"].values():
            values = [value for turn in engine["turns"] for value in turn]
            engine |= {"median": statistics.median(values), "range": [min(values), max(values)]}
        ours, peer = entry["engines"].get("atom"), entry["engines"].get("vllm")
        if ours and peer:
            # Below 1 is better for times, above 1 for rates.
            entry["ours_over_peer"] = round(ours["median"] / peer["median"], 3)
    return list(entries.values())
