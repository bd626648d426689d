"""The table of the first seconds of service, by workload and by what the start found compiled."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.aims import aim_of, found_for, verdict
from benchmarks.gpu.tables import conditions, number
from benchmarks.report import markdown_table

Result = dict[str, Any]
COLUMNS = (
    *("first token, longest", "first token, p99", "first tokens", "steady tokens", "share of steady"),
    *("longest gap, first", "longest gap, steady", "late compilations", "late captures"),
)
NAMES = {"atom": "atom", "vllm": "vLLM"}


def served_table(document: dict[str, Any]) -> str:
    """A `gpu-served` result in markdown: a row for each engine, what was wanted of ours, and the facts of the run."""
    rows: list[tuple[str, ...]] = [("model", "caches", "workload", "engine", *COLUMNS)]
    found: dict[tuple[str, ...], dict[str, Result]] = {}
    for result in document["results"]:
        about = result["about"]
        key = (result["model"], about["caches"] + _with(about), about["workload"])
        found.setdefault(key, {})[about["what"]] = result
    starts = []
    for key, by_what in found.items():
        engines = dict.fromkeys(engine for result in by_what.values() for engine in result["engines"])
        if "ready" in by_what:
            cells = (f"{NAMES[engine]} {_cell(by_what['ready'], engine)}" for engine in engines)
            starts.append(f"Process start to ready, {key[0]}, caches {key[1]}: {', '.join(cells)}.")
            continue
        for engine in engines:
            cells = (_cell(by_what[what], engine) if what in by_what else "" for what in COLUMNS)
            rows.append((*key, NAMES[engine], *cells))
    return "\n\n".join(
        [markdown_table(rows), *starts, *filter(None, [_judged(document["results"])]), _measured_with(document)]
    )


def _measured_with(document: dict[str, Any]) -> str:
    """The facts of the run, and the commit of each variant that another run measured."""
    commit = document["machine"]["commit"]
    others = {(_with(of["about"]).removeprefix(", "), of["commit"]) for of in document["results"]}
    earlier = [f"Rows with {variant} are of commit {of}." for variant, of in sorted(others) if of != commit]
    return " ".join([conditions(document), *earlier])


def _with(about: dict[str, Any]) -> str:
    return f", {about['with']}" if "with" in about else ""


def _cell(result: Result, engine: str) -> str:
    value = result["engines"].get(engine, {}).get("median")
    if value is None:
        return ""
    return number(value, result["unit"]) if result["unit"] else f"{value:.0f}"


def _judged(results: list[Result]) -> str:
    rows: list[tuple[str, ...]] = [("model", "figure", "must", "aim", "found", "")]
    for result in results:
        if (aim := aim_of(result["model"], result["about"])) is None or (found := found_for(result, aim)) is None:
            continue
        values = (number(value, result["unit"]) for value in (aim.must, aim.aim, found))
        rows.append((result["model"], result["figure"], *values, verdict(found, aim)))
    return markdown_table(rows) if len(rows) > 1 else ""
