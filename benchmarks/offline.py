"""Decode and prefill steps of our engine and of others, on the same weights, in turns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, roofline, tables, timing
from benchmarks.sides import ENGINES, SideProcess


@dataclass(frozen=True)
class Scenario:
    """A kind of step to time: "decode" of a batch at a context, or "prefill" of one prompt (context new tokens)."""

    kind: str
    batch_size: int
    context: int

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.context}"
        return f"decode, batch {self.batch_size}, context {self.context}"

    def work(self, config: Mapping[str, Any], dtype: str) -> roofline.StepWork:
        """What the step cannot avoid."""
        new_tokens = self.context if self.kind == "prefill" else 1
        return roofline.step_work(
            config, num_requests=self.batch_size, new_tokens=new_tokens, context=self.context, dtype=dtype
        )

    def prepare(self, side: SideProcess) -> None:
        """Get `side` ready to take turns."""
        if self.kind == "prefill":
            side.prepare("prefiller", num_tokens=self.context)
        else:
            side.prepare("decoder", batch_size=self.batch_size, context=self.context)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks offline`."""
    parser.add_argument("--vs", action="append", choices=ENGINES[1:], default=[], help="engine to compare with")
    parser.add_argument("--only", choices=ENGINES, help="run one engine alone")
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=512, help="tokens of each request before decoding starts")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], help="of the decode steps")
    parser.add_argument("--prefill", type=int, nargs="+", default=[512], help="prompt lengths of the prefill steps")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine in each scenario")
    parser.add_argument("--steps", type=int, default=8, help="timed steps in a turn")
    parser.add_argument("--probe-megabytes", type=int, default=512, help="memory that the bandwidth is measured on")
    parser.add_argument("--probe-matrix", type=int, default=2048, help="rows of the matrix product that is measured")
    parser.add_argument("--require-idle", action="store_true", help="stop instead of warning when the machine is busy")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    if not documents.was_idle(idle):
        print(f"Other processes are busy: {idle:.0%} of the cores' time is idle. Timings will be too long.")
        if options.require_idle:
            return 1
    # Imported here, with threads set before anything computes, so that --help stays quick.
    import torch

    from atom_models import open_checkpoint

    torch.set_num_threads(options.threads)
    names = [options.only] if options.only else ["atom", *dict.fromkeys(options.vs)]
    scenarios = [Scenario("decode", size, options.context) for size in options.batch_sizes]
    scenarios += [Scenario("prefill", 1, length) for length in options.prefill]

    path = machine.model_path(options.model)
    config = open_checkpoint(path).config
    probe = partial(
        roofline.measure_rates, options.dtype, megabytes=options.probe_megabytes, matrix=options.probe_matrix
    )
    rates = probe()
    sides = [_open(name, path, scenarios, options=options) for name in names]
    try:
        taken = [_take(scenario, sides, options) for scenario in scenarios]
        agreement = _agreement(sides, config)
    finally:
        for side in sides:
            side.close()
    # Neighbors of a virtual machine change its bandwidth: the bound is the better of before and after.
    rates = rates.better_of(probe())
    results = [
        _result(scenario, timings, config, rates, dtype=options.dtype) | {"share_used_by_others": others}
        for scenario, (timings, others) in zip(scenarios, taken, strict=True)
    ]
    settings = documents.flags_of(options, "model", "dtype", "threads", "turns", "steps")
    others = [result["share_used_by_others"] for result in results]
    document = documents.document_of("offline", options, settings, idle=idle, others=others, results=results) | {
        "read_gb_per_s": round(rates.bytes_per_second / 1e9, 1),
        "matmul_tflop_per_s": round(rates.operations_per_second / 1e12, 3),
        "greedy_agreement": agreement,
    }
    print(tables.offline_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def _open(name: str, path: Path, scenarios: list[Scenario], *, options: argparse.Namespace) -> SideProcess:
    print(f"loading {path.name} in {name} ...", file=sys.stderr)
    longest = max(scenario.context for scenario in scenarios) + (options.turns + 1) * (options.steps + 2) + 64
    return SideProcess(
        name,
        path=str(path.resolve()),
        dtype=options.dtype,
        threads=options.threads,
        max_model_len=longest,
        max_num_seqs=max(scenario.batch_size for scenario in scenarios),
    )


def _take(
    scenario: Scenario, sides: list[SideProcess], options: argparse.Namespace
) -> tuple[dict[str, timing.Timings], float | None]:
    """Timings by engine, and the share of the cores that other processes took meanwhile."""
    print(f"measuring {scenario.name} ...", file=sys.stderr)
    for side in sides:
        scenario.prepare(side)
    interference = machine.Interference([side.pid for side in sides])
    timings = timing.interleave({side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps)
    return timings, interference.share()


def _result(
    scenario: Scenario,
    timings: dict[str, timing.Timings],
    config: Mapping[str, Any],
    rates: roofline.MachineRates,
    *,
    dtype: str,
) -> dict[str, Any]:
    least = rates.least_seconds(scenario.work(config, dtype))
    tokens = scenario.context if scenario.kind == "prefill" else scenario.batch_size
    engines = {
        name: taken.summary()
        | {"tokens_per_s": round(tokens / taken.median, 1), "roofline_share": round(least / taken.median, 3)}
        for name, taken in timings.items()
    }
    ours = timings.get("atom")
    faster = {name: timing.ratios(ours, taken) for name, taken in timings.items() if ours and name != "atom"}
    return {
        "scenario": scenario.name,
        "roofline_ms": round(1e3 * least, 2),
        "engines": engines,
        "times_faster_than": faster,
    }


def _agreement(sides: list[SideProcess], config: Mapping[str, Any], num_tokens: int = 16) -> dict[str, Any] | None:
    """How many of a few greedy tokens after a fixed prompt are equal from the start (in bf16 they may differ late)."""
    if len(sides) < 2:
        return None
    prompt = [token % config["vocab_size"] for token in (504, 3575, 282, 4649, 314)]
    outputs = [side.greedy(prompt, num_tokens) for side in sides]
    equal = next((i for i in range(num_tokens) if len({tuple(output[: i + 1]) for output in outputs}) > 1), num_tokens)
    return {"tokens_compared": num_tokens, "equal_from_the_start": equal}
