"""Engines take turns, each in a fresh process; this module is also what runs in that process.

Two engines do not fit on one GPU together, so the turns are whole runs: ours, the peer, ours again. What the GPU does
in between shows as a difference between our two turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import write_config
from benchmarks.gpu.plugin import plugin_path
from benchmarks.gpu.settings import ROOT, environment_of
from benchmarks.gpu.workloads import Figure, Sizes, measure, random_prompt


def take_turns(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure `model` with ours, the peer and ours again: the figures of every turn (see `summarize`)."""
    order = ["atom"]
    if options.vs:
        order += [options.vs] if options.once else [options.vs, "atom"]
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_config(model, Path(folder), options.num_layers)
        for turn, engine in enumerate(order):
            print(f"{model}: turn {turn + 1} of {len(order)}, {engine} ...", file=sys.stderr, flush=True)
            label = model if options.num_layers is None else f"{model} ({options.num_layers} layers)"
            for figure in _run_side(engine, path, options, Path(folder)):
                figures.append({"model": label, "turn": turn} | figure)
                print(f"  {figure['figure']}: {figure['values']} {figure['unit']}", file=sys.stderr, flush=True)
    return figures


def _run_side(engine: str, model: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    path = plugin_path(folder / "plugin", options.peer_path or "") if options.in_vllm else None
    environment = environment_of(engine, options.peer_path, folder / "cache" if options.cold else None, path)
    settings = {
        "engine": engine, "in_vllm": options.in_vllm, "model": str(model),
        "scenarios": options.scenarios, "batch_sizes": options.batch_sizes,
        "contexts": options.contexts, "prompts": options.prompts, "repeats": options.repeats,
        "max_model_len": options.max_model_len, "engine_options": options.engine_option, "started": time.time(),
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.gpu.turns", json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    figures = []
    for line in process.stdout or ():
        if line.startswith("{"):
            figures.append(json.loads(line))
    if process.wait():
        print(f"  {engine} ended with status {process.returncode}; its error is above", file=sys.stderr)
    return figures


def main() -> None:
    """Run one engine and print a line of JSON for each figure."""
    settings = json.loads(sys.argv[1])
    from benchmarks.gpu import engines

    sizes = Sizes(settings["batch_sizes"], settings["contexts"], settings["prompts"], settings["repeats"])
    given = dict(entry.split("=", 1) for entry in settings["engine_options"])
    side = engines.Atom if settings["engine"] == "atom" and not settings["in_vllm"] else engines.Vllm
    engine = side(
        Path(settings["model"]),
        max_model_len=settings["max_model_len"],
        prefix_caching="prefix" in settings["scenarios"],
        settings={name: json.loads(value) for name, value in given.items()},
    )

    def tell(figure: Figure) -> None:
        line = {"engine": settings["engine"], "version": engine.version, **figure._asdict()}
        print(json.dumps(line), flush=True)

    import random

    engine.generate([random_prompt(random.Random(1), 64)], [1], 0.0)
    if "start" in settings["scenarios"]:
        tell(Figure("process start to first token", "s", [time.time() - settings["started"]]))
    engine.generate([random_prompt(random.Random(2), 64)] * 4, [16] * 4, 0.6)
    for figure in measure(engine, settings["scenarios"], sizes):
        tell(figure)


if __name__ == "__main__":
    main()
