"""What the dashboard takes from files of results: runs under load, and readings of accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_server.bench.outcome import BenchError


@dataclass(frozen=True)
class Run:
    """One load on one server.

    Attributes:
        load: what was sent, in words; runs of the same model, place and load are compared.
        moment: when it was made, in a form that sorts by time.
        ttft, tpot: medians in milliseconds.
    """

    model: str
    place: str
    load: str
    moment: str
    commit: str
    throughput: float
    ttft: float
    tpot: float
    file: str

    @property
    def subject(self) -> tuple[str, str, str]:
        """Runs of equal subjects are a trend."""
        return self.model, self.place, self.load


@dataclass(frozen=True)
class AccuracyReading:
    """How a model read a text, as `atom bench accuracy` wrote it."""

    model: str
    weights: str
    kv_cache: str
    perplexity: float
    change: float | None
    file: str


@dataclass(frozen=True)
class TaskScore:
    """How a model answered a task, as `atom bench accuracy --tasks` wrote it; `metric` says how it was read, too."""

    model: str
    weights: str
    task: str
    metric: str
    value: float
    stderr: float | None
    commit: str
    file: str


@dataclass(frozen=True)
class Results:
    """What files hold; runs in order of time."""

    runs: list[Run]
    readings: list[AccuracyReading]
    scores: list[TaskScore]


def read_results(paths: Sequence[Path]) -> Results:
    """What files of `atom bench serve`, `sweep` and `accuracy`, and of `python -m benchmarks served` hold.

    Raises:
        BenchError: a file is none of these.
    """
    runs: list[Run] = []
    readings: list[AccuracyReading] = []
    scores: list[TaskScore] = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            found_runs, found_readings = _runs(document, path.name), _readings(document, path.name)
            found_scores = _scores(document, path.name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BenchError(f"{path} is no result: {type(error).__name__}: {error}") from None
        if not found_runs and not found_readings and not found_scores:
            raise BenchError(f"{path} is no result of atom bench serve, sweep or accuracy, or of benchmarks served")
        runs += found_runs
        readings += found_readings
        scores += found_scores
    return Results(sorted(runs, key=lambda run: run.moment), readings, scores)


def _runs(document: Mapping[str, Any], file: str) -> list[Run]:
    results = document["results"] if isinstance(document.get("results"), list) else [document]
    return [_run(document, each, file) for each in results if "output_throughput" in each]


def _run(document: Mapping[str, Any], result: Mapping[str, Any], file: str) -> Run:
    machine = document.get("machine") or {}
    if "at_a_time" in result:  # of `python -m benchmarks served`
        load = f"{result['at_a_time']} at once, {result['tokens_in']} in, {result['tokens_out']} out"
    else:
        done = result["completed"] or 1
        mean = (round(result[f"total_{kind}_tokens"] / done) for kind in ("input", "output"))
        limit = result.get("max_concurrency") or f"{result['request_rate']} a second,"
        load = f"{limit} at once, {next(mean)} in, {next(mean)} out"
    model = result.get("model_id") or document["settings"]["model"]
    place = machine.get("device") or machine.get("cpu") or result.get("label") or result.get("backend", "")
    moment = result.get("date") or machine.get("date") or ""
    commit = result.get("commit") or machine.get("commit") or ""
    values = (result["output_throughput"], result["median_ttft_ms"], result["median_tpot_ms"])
    return Run(model, place, load, _sortable(moment), commit, *values, file)


def _sortable(moment: str) -> str:
    """Dates of both forms that results have, as 14 digits."""
    return "".join(sign for sign in moment if sign.isdigit()).ljust(14, "0")


def _readings(document: Mapping[str, Any], file: str) -> list[AccuracyReading]:
    results = document["results"] if isinstance(document.get("results"), list) else []
    return [
        AccuracyReading(
            *(each["model"], each["quantization"], each["kv_cache_dtype"], each["perplexity"]),
            each.get("perplexity_change"),
            file,
        )
        for each in results
        if "perplexity" in each
    ]


def _scores(document: Mapping[str, Any], file: str) -> list[TaskScore]:
    results = document["results"] if isinstance(document.get("results"), list) else []
    commit = (document.get("machine") or {}).get("commit") or ""
    return [
        TaskScore(
            *(each["model"], each.get("quantization", ""), each["task"], f"{each['metric']}, {each['filter']}"),
            *(each["value"], each["stderr"], commit, file),
        )
        for each in results
        if "task" in each
    ]
