"""How long the GPU makes drafts behind a step, read from a trace of the engine."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARK = "draft"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
# The share of the most kernels of a step that a step with as many drafts has at least.
_ALL_DRAFTS = 0.9


def read_drafting(trace: Path) -> list[float]:
    """Seconds of each step in which all drafts were made, from the first kernel of it to the last.

    Raises:
        ValueError: there is no such step in it.
    """
    with gzip.open(trace, "rt") as file:
        seconds = drafting_seconds(json.load(file)["traceEvents"])
    if not seconds:
        raise ValueError(f"{trace} shows no kernels that were launched under the mark {MARK!r}")
    return seconds


def drafting_seconds(events: Iterable[dict[str, Any]]) -> list[float]:
    """As `read_drafting`, of the events of a trace; their times are microseconds.

    A kernel belongs to the call that launched it, also as a part of a graph, by its number ("correlation"). Steps that
    make fewer drafts have far fewer kernels; a copy more or less makes no other step of it.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    kernels: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in whole:
        if event.get("cat") in _ON_GPU:
            kernels[event["args"]["correlation"]].append((event["ts"], event["ts"] + event["dur"]))
    calls = [event for event in whole if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})]
    found: list[tuple[int, float]] = []
    for mark in whole:
        if mark.get("cat") == "user_annotation" and mark.get("name") == MARK:
            ends = mark["ts"] + mark["dur"]
            mine = [call["args"]["correlation"] for call in calls if mark["ts"] <= call["ts"] <= ends]
            if spans := [span for number in mine for span in kernels.get(number, ())]:
                microseconds = max(end for _, end in spans) - min(start for start, _ in spans)
                found.append((len(spans), microseconds / 1e6))
    most = max((count for count, _ in found), default=0)
    return [seconds for count, seconds in found if count >= _ALL_DRAFTS * most]
