"""What a grammar adds to the steps of an engine: most of the work on masks happens while the model computes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks import timing

PROMPT = "Here is what the old sailor wrote in his diary that night:"
WARM_UP = 2


def measure_added(cases: dict[str, dict[str, Any]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """For each constraint a decode step of the batch without it, with it, and the difference, printed as it comes.

    Sides take turns. Steps in which a text has come to its end are left out. Processor time is that of all threads:
    other programs hardly change it, but what runs beside the model counts too.
    """
    from atom_core import LLMEngine, SamplingParams, StructuredOutputParams

    turns, steps = options.turns, options.decode_steps
    engine = LLMEngine(
        options.model, jump_forward=False, max_num_seqs=options.batch_size, **_threads(options.num_threads)
    )
    with engine:
        print(f"decode steps of {turns} turns, ms: free, with the grammar, added (range over turns), of processor time")
        for name, constraint in cases.items():
            sides = {"free": None, "grammar": StructuredOutputParams(**constraint)}
            params = {
                side: [
                    SamplingParams(
                        max_tokens=steps + WARM_UP + 8,
                        min_tokens=steps + WARM_UP + 4,
                        temperature=1.0,
                        seed=seed,
                        structured_outputs=given,
                    )
                    for seed in range(options.batch_size)
                ]
                for side, given in sides.items()
            }
            busy: dict[str, list[float]] = {side: [] for side in sides}
            taken = {side: partial(decode, engine, params[side], busy[side]) for side in sides}
            timings = timing.interleave(taken, turns=turns, steps=steps, warm_up=WARM_UP)
            found = _compared(timings, busy)
            print(f"{name:20s} {_line(found)}")
            yield {"grammar": name} | found


def decode(engine: Any, params: Sequence[Any], busy: list[float], warm_up: int, steps: int) -> list[float]:
    """Seconds of decode steps of a batch, as long as all of it runs; those of the processor are added to `busy`."""
    begun: set[str] = set()
    ended: set[str] = set()

    def note(output: Any) -> None:
        begun.add(output.request_id)
        if output.finished:
            ended.add(output.request_id)

    request_ids = engine.add_request([PROMPT] * len(params), list(params), note)
    seconds: list[float] = []
    try:
        while len(begun) < len(params):
            engine.step()
        for step in range(warm_up + steps):
            worked = time.process_time()
            taken = timing.take_turn(engine.step, 0, 1)
            if ended:
                break
            if step >= warm_up:
                seconds += taken
                busy.append(time.process_time() - worked)
    finally:
        engine.abort(request_ids)
        while engine.stats.num_running:
            engine.step()
    return seconds


def _compared(timings: dict[str, timing.Timings], busy: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds: medians, and what is added to the step and to the time of all threads."""
    free, grammar = timings["free"], timings["grammar"]
    if not grammar.steps:
        return {"num_steps": 0}
    pairs = [
        1e3 * (statistics.median(with_it) - statistics.median(without))
        for without, with_it in zip(free.turns, grammar.turns, strict=False)
        if with_it
    ]
    return {
        "free_ms": round(1e3 * free.median, 3),
        "grammar_ms": round(1e3 * grammar.median, 3),
        "added_ms": round(1e3 * (grammar.median - free.median), 3),
        "added_range_ms": [round(min(pairs), 3), round(max(pairs), 3)],
        "added_work_ms": round(1e3 * (statistics.median(busy["grammar"]) - statistics.median(busy["free"])), 3),
        "num_steps": len(grammar.steps),
    }


def _line(found: dict[str, Any]) -> str:
    if not found["num_steps"]:
        return "every text ends too soon"
    low, high = found["added_range_ms"]
    medians = (
        f"{found['free_ms']:8.2f} {found['grammar_ms']:8.2f} {found['added_ms']:+7.2f} ({low:+.2f} to {high:+.2f})"
    )
    return f"{medians} {found['added_work_ms']:+7.2f}; {found['num_steps']} steps"


def _threads(num_threads: int | None) -> dict[str, Any]:
    return {} if num_threads is None else {"num_threads": num_threads}
