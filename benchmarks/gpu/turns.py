"""Engines take turns, each in fresh processes.

Two engines do not fit on one GPU together, so the turns are whole runs: ours, the peer, ours again. What the GPU does
in between shows as a difference between our two turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import write_config
from benchmarks.gpu.plugin import plugin_path
from benchmarks.gpu.processes import told_by
from benchmarks.gpu.settings import environment_of, own_environment
from benchmarks.gpu.workloads import NEVER_RIGHT


@dataclass(frozen=True)
class Session:
    """One process of a turn.

    Attributes:
        caches: what a start finds of earlier compiling: "cold", "warm", or "as found" on the machine.
        label: what the figures are called, where settings differ from those of the others.
        has_drafts: the peer speculates.
    """

    scenarios: list[str]
    caches: str = "as found"
    prefix_caching: bool = False
    engine_options: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    has_drafts: bool = False


def sessions_of(engine: str, options: argparse.Namespace, *, is_first: bool) -> list[Session]:
    """The processes of a turn: what needs settings of its own gets one, and is not repeated by a later turn."""
    settings = settings_of(options.engine_option if engine == "atom" else options.peer_option)
    caches = "warm" if options.cold else "as found"
    special = {"prefix", "speculation", "served", *(() if is_first else ("profile",))}
    main = Session([name for name in options.scenarios if name not in special], caches, engine_options=settings)
    if not is_first:
        return [main] if main.scenarios else []
    sessions = [main] if main.scenarios else []
    if options.cold:
        starts = [name for name in main.scenarios if name != "start"]
        sessions = [Session(["start"], "cold", engine_options=settings), replace(main, scenarios=["start", *starts])]
    if "prefix" in options.scenarios:
        sessions.append(Session(["prefix"], prefix_caching=True, engine_options=settings))
    if engine != "atom" and "speculation" in options.scenarios:
        sessions += [Session(["speculation"], caches, has_drafts=has_drafts) for has_drafts in (False, True)]
    if "served" in options.scenarios:
        sessions += [Session(["served"], state, engine_options=settings) for state in ("cold", "warm")]
        for given in options.variant if engine == "atom" else ():
            label = " ".join(given)
            sessions.append(Session(["served"], "warm", engine_options=settings | settings_of(given), label=label))
    if engine == "atom" and not options.in_vllm:
        if "speculation" in options.scenarios:
            parts = ([NEVER_RIGHT], ["speculation"])
            sessions += [Session(part, caches, engine_options=settings) for part in parts]
        # Where the time of a step goes is told of the engine as it comes.
        scenarios = [name for name in main.scenarios if name != "profile"]
        for given in options.variant if scenarios else ():
            sessions.append(Session(scenarios, engine_options=settings | settings_of(given), label=" ".join(given)))
    return sessions


def settings_of(given: list[str]) -> dict[str, Any]:
    """Settings by name from ``NAME=VALUE``, whose value is JSON or a plain word."""
    return {name: _value(text) for name, _, text in (entry.partition("=") for entry in given)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def take_turns(model: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure `model` with ours, the peer and ours again: every figure, and every failure, as soon as it is known."""
    order = ["atom"]
    if options.vs:
        order += [options.vs] if options.once else [options.vs, "atom"]
    label = model if options.num_layers is None else f"{model} ({options.num_layers} layers)"
    if (num_ranks := options.tensor_parallel_size) > 1:
        label += f" (tensor parallel {num_ranks}{', whole experts' if options.enable_expert_parallel else ''})"
    with tempfile.TemporaryDirectory() as folder:
        path = write_config(model, Path(folder), options.num_layers)
        for turn, engine in enumerate(order):
            for session in sessions_of(engine, options, is_first=engine not in order[:turn]):
                what = " ".join(session.scenarios)
                _say(f"{label}: turn {turn + 1} of {len(order)}, {engine}: {session.label or ''} {what} ...")
                started = time.monotonic()
                for entry in _run(engine, session, path, options, Path(folder)):
                    _say(f"{time.monotonic() - started:7.1f} s  {_described(entry)}")
                    yield {"model": label, "turn": turn, "engine": engine} | entry


def _run(
    engine: str, session: Session, model: Path, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    plugin = plugin_path(folder / "plugin", options.peer_path or "") if options.in_vllm else None
    is_served = session.scenarios == ["served"]
    caches = folder / f"caches of {engine}" if options.cold or is_served else None
    settings = {
        "engine": engine, "in_vllm": options.in_vllm, "model": str(model), "max_model_len": options.max_model_len,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enable_expert_parallel": options.enable_expert_parallel,
        "sizes": {
            "batch_sizes": options.batch_sizes, "contexts": options.contexts, "prompts": options.prompts,
            "repeats": options.repeats, "long_batch_sizes": options.long_batch_sizes,
            "long_contexts": options.long_contexts, "in_flight": options.in_flight,
        },
        "started": time.monotonic(),  # one clock for all processes, which nobody sets
        **vars(session),
    }  # fmt: skip
    if is_served:
        load = {"streams": options.streams, "window": options.window}
        settings |= {"peer_path": options.peer_path, "kernel_cache": str(caches), "sizes": load}
    worker = "benchmarks.gpu.served.worker" if is_served else "benchmarks.gpu.worker"
    command = [sys.executable, "-m", worker, json.dumps(settings)]
    log = f"{model.name}-{engine}-{session.scenarios[0].replace(' ', '-')}.txt"
    logs = None if options.logs is None else options.logs / log
    environment = own_environment() if is_served else environment_of(engine, options.peer_path, caches, plugin)
    yield from told_by(command, environment, seconds=options.seconds, log=logs)


def _described(entry: dict[str, Any]) -> str:
    if "failure" in entry:
        return f"FAILED {entry['failure']}"
    if entry.get("skipped"):
        return f"{entry['figure']}: not measured, {entry['skipped']}"
    return f"{entry['figure']}: {' '.join(f'{value:.4g}' for value in entry['values'])} {entry['unit']}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
