"""Figures of all turns as results: medians, ratios to the peer and to the floor."""

from __future__ import annotations

import functools
import statistics
from typing import Any

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.floors import decode_seconds, offline_seconds, prefill_seconds, shape_of
from benchmarks.gpu.models import MODELS, config_of
from benchmarks.gpu.workloads import offline_lengths


def summarize(
    measured: list[dict[str, Any]], ceilings: Ceilings, *, num_layers: int | None = None, num_ranks: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One result for each figure of a model, and the failures.

    A result has every engine's values, ours over the peer's by medians, and the floor by the rates of this run.
    `measured` has an entry for each figure of each turn: model, turn, engine, version, figure, unit, values, about,
    skipped; or model, engine and failure.
    """
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for item in measured:
        if "failure" in item:
            continue
        key = (item["model"], item["figure"])
        facts = {name: item[name] for name in ("model", "figure", "unit", "about")}
        result = results.setdefault(key, facts | {"engines": {}})
        engine = result["engines"].setdefault(item["engine"], {"version": item["version"], "turns": []})
        if item["skipped"]:
            engine["skipped"] = item["skipped"]
        else:
            engine["turns"].append(item["values"])
    for result in results.values():
        _compare(result)
        if (floor := floor_of(result["model"], result["about"], ceilings, num_layers, num_ranks=num_ranks)) is not None:
            result["floor"] = floor
    failures = [{name: item[name] for name in ("model", "engine", "failure")} for item in measured if "failure" in item]
    return list(results.values()), failures


def floor_of(
    model: str, about: dict[str, Any], ceilings: Ceilings, num_layers: int | None, *, num_ranks: int = 1
) -> float | None:
    """The best figure that the rates of the GPU allow, in the unit of the figure; None where there is no such bound.

    Several ranks share every byte and every product evenly, and exchange nothing.
    """
    name = model.partition(" ")[0]
    if name not in MODELS or about.get("kind") not in ("decode", "greedy decode", "prefill", "offline"):
        return None
    if about["kind"] == "offline":
        return num_ranks * _offline_floor(name, ceilings, num_layers)
    shape = shape_of(config_of(name, num_layers))
    if about["kind"] == "prefill":
        return 1e3 * prefill_seconds(shape, about["tokens"], ceilings) / num_ranks
    return 1e3 * decode_seconds(shape, about["batch"], about["context"] + about["steps"], ceilings) / num_ranks


@functools.cache
def _offline_floor(name: str, ceilings: Ceilings, num_layers: int | None) -> float:
    prompts, outputs = offline_lengths()
    shape = shape_of(config_of(name, num_layers))
    return sum(outputs) / offline_seconds(shape, [len(prompt) for prompt in prompts], outputs, ceilings)


def _compare(result: dict[str, Any]) -> None:
    for engine in result["engines"].values():
        if values := [value for turn in engine["turns"] for value in turn]:
            engine |= {"median": statistics.median(values), "range": [min(values), max(values)]}
    ours, peer = (result["engines"].get(name, {}).get("median") for name in ("atom", "vllm"))
    if ours is not None and peer:
        # Below 1 is better for times, above 1 for rates.
        result["ours_over_peer"] = round(ours / peer, 3)
