"""The figures that a README has room for: one row a model, ours and how it compares."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.aims import aim_of
from benchmarks.gpu.tables import number
from benchmarks.report import markdown_table

COLUMNS = {
    "decode step, batch 1, context 1024": "decode step, batch 1",
    "decode step, batch 32, context 1024": "batch 32",
    "decode step, batch 128, context 1024": "batch 128",
    "prefill of 1024": "prompt of 1024",
    "prefill of 8192": "prompt of 8192",
    "offline, 256 requests": "256 requests",
}


def headlines(document: dict[str, Any]) -> str:
    """A table of a `gpu` result: every model that was measured beside a peer, with what the numbers mean under it."""
    found = {(result["model"], result["figure"]): result for result in document["results"]}
    compared = {model for (model, _), result in found.items() if aim_of(model, result["about"]) and _ratio(result)}
    models = [model for model in dict.fromkeys(model for model, _ in found) if model in compared]
    rows: list[tuple[str, ...]] = [("model", *COLUMNS.values())]
    rows += [(model, *(_cell(found.get((model, figure))) for figure in COLUMNS)) for model in models]
    versions = {engines["vllm"]["version"] for result in found.values() if "vllm" in (engines := result["engines"])}
    machine, dtype = document["machine"], document["settings"]["dtype"]
    note = (
        f"One {machine['device']}, {dtype}, dummy weights, contexts of 1024 tokens. In brackets how many times the "
        f"time of vLLM {', '.join(sorted(versions))} that is, in the same call, or its tokens in a second for 256 "
        "requests at once. Short prompts and small batches wait for the host, and slow hosts cost vLLM more: where two "
        "numbers stand, the second is of a quick host, at an earlier commit. [docs/gpu.md](docs/gpu.md) has spreads, "
        "floors and conditions."
    )
    return "\n\n".join([markdown_table(rows), note, *_starts(document["results"])])


def _starts(results: list[dict[str, Any]]) -> list[str]:
    """A sentence for each model whose starts were timed beside a peer's, with caches warm and cold."""
    seconds: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results:
        if result["about"]["kind"] == "start" and _ratio(result):
            seconds.setdefault(result["model"], {})[result["about"]["caches"]] = result["engines"]
    sentences = []
    for model, found in seconds.items():
        if {"warm", "cold"} <= found.keys():
            ours, theirs = ([found[caches][name]["median"] for caches in ("warm", "cold")] for name in ("atom", "vllm"))
            sentences.append(
                f"From the start of the process to its first token {model} takes {ours[0]:.1f} s, and {ours[1]:.1f} s "
                f"where nothing was compiled before; vLLM takes {theirs[0]:.1f} and {theirs[1]:.1f} s."
            )
    return sentences


def _ratio(result: dict[str, Any]) -> float | None:
    return result.get("ours_over_peer")


def _cell(result: dict[str, Any] | None) -> str:
    if result is None or (ours := result["engines"].get("atom", {}).get("median")) is None:
        return ""
    ratio = _ratio(result)
    quick = result.get("quick_host", {}).get("ours_over_peer")
    ratios = [f"{value:.2f}x" for value in (ratio, quick) if value is not None]
    return number(ours, result["unit"]) + (f" ({', '.join(ratios)})" if ratios else "")
