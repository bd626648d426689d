"""Figures of a quick host beside those of slow ones: short prompts and small batches wait for the host."""

from __future__ import annotations

from typing import Any

from benchmarks.report import markdown_table

Result = dict[str, Any]


def with_quick_host(document: dict[str, Any], quick: dict[str, Any] | None) -> dict[str, Any]:
    """`document` whose results hold, as ``quick_host``, those of a quick host, with their commit."""
    if quick is None:
        return document
    commit = quick["machine"]["commit"]
    found = {(result["model"], result["figure"]): result | {"commit": commit} for result in quick["results"]}
    results = []
    for result in document["results"]:
        there = found.get((result["model"], result["figure"]))
        results.append(result if there is None else result | {"quick_host": there})
    return document | {"results": results}


def judged_ratio(result: Result) -> float | None:
    """Ours over the peer's: on the quick host where there is one, which flatters us least."""
    return result.get("quick_host", result).get("ours_over_peer")


def hosts_table(results: list[Result]) -> str:
    """Ratios on both hosts beside the peer's own values; empty where no figure was measured on both."""
    rows: list[tuple[str, ...]] = [
        (
            "model",
            "figure",
            "slower hosts: atom / vLLM",
            "vLLM there",
            "quick host: atom / vLLM",
            "vLLM there",
            "commit",
        )
    ]
    for result in results:
        if (quick := result.get("quick_host")) is None or "ours_over_peer" not in result:
            continue
        theirs = (f"{each['engines']['vllm']['median']:,.2f} {result['unit']}" for each in (result, quick))
        slow, fast = (f"{each['ours_over_peer']:.2f}" for each in (result, quick))
        there, here = theirs
        rows.append((result["model"], result["figure"], slow, there, fast, here, quick["commit"]))
    return markdown_table(rows) if len(rows) > 1 else ""
