"""The table of what speculation gives on a GPU by batch, what making drafts takes, and what wrong ones cost."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.aims import aim_of, found_for, verdict
from benchmarks.gpu.tables import conditions, number
from benchmarks.report import markdown_table

Result = dict[str, Any]


def gains_table(document: dict[str, Any]) -> str:
    """A `gpu-speculation` result in markdown, with the facts of the run under it."""
    rows: list[tuple[str, ...]] = [
        ("model", "batch", "without", "with", "gain (range)", "must", "aim", "", "drafts of a row, right")
    ]
    speeds = {
        (result["model"], result["about"]["batch"], result["about"]["kind"]): result["engines"]["atom"]["median"]
        for result in document["results"]
        if result["unit"] == "tokens/s" and "atom" in result["engines"]
    }
    for result in document["results"]:
        about = result["about"]
        if about["kind"] != "speculation":
            continue
        without, with_drafts = (
            number(speeds[result["model"], about["batch"], f"{way} drafts"], "tokens/s") for way in ("without", "with")
        )
        what = (result["model"], str(about["batch"]), without, with_drafts)
        rows.append((*what, _spread(result), *_judged(result), _right(about)))
    peer = _peer_rows(document)
    others = [
        "{}, {}: {} (must {}, aim {}: {}).".format(result["model"], result["figure"], _spread(result), *_judged(result))
        for result in document["results"]
        if result["about"]["kind"] in ("drafting", "never right")
    ]
    return "\n\n".join([markdown_table(rows), *peer, *others, conditions(document)])


def _peer_rows(document: dict[str, Any]) -> list[str]:
    """A table of the same for vLLM, where it was measured, and how ours with drafts compares."""
    found: dict[tuple[str, int], dict[str, Result]] = {}
    for result in document["results"]:
        if result["unit"] == "tokens/s" and "median" in result["engines"].get("vllm", {}):
            about = result["about"]
            found.setdefault((result["model"], about["batch"]), {})[about["kind"]] = result
    rows: list[tuple[str, ...]] = [("model", "batch", "vLLM without", "with", "gain", "ours with drafts over vLLM's")]
    for (model, batch), ways in found.items():
        if set(ways) == {"without drafts", "with drafts"}:
            slow, fast = (ways[way]["engines"]["vllm"]["median"] for way in ("without drafts", "with drafts"))
            ratio = ways["with drafts"].get("ours_over_peer")
            compared = "" if ratio is None else f"{ratio:.2f}"
            speeds = (number(slow, "tokens/s"), number(fast, "tokens/s"))
            rows.append((model, str(batch), *speeds, f"{fast / slow:.2f}", compared))
    return [markdown_table(rows)] if len(rows) > 1 else []


def _spread(result: Result) -> str:
    ours = result["engines"]["atom"]
    low, high = ours["range"]
    return f"{ours['median']:.2f} ({low:.2f} - {high:.2f})"


def _judged(result: Result) -> tuple[str, str, str]:
    """What it must be, what is aimed for, and whether it is."""
    aim = aim_of(result["model"], result["about"])
    if aim is None or (found := found_for(result, aim)) is None:
        return "", "", ""
    return f"{aim.must:.2f}", f"{aim.aim:.2f}", verdict(found, aim)


def _right(about: dict[str, Any]) -> str:
    rows = max(about["rows_with_drafts"], 1)
    return f"{about['accepted'] / rows:.2f} of {about['drafted'] / rows:.2f}" if about["rows_with_drafts"] else ""
