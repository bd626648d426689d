"""Results of the GPU as tables, and where they are saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, markdown_table


def result_path(document: dict[str, Any]) -> Path:
    """One file for each GPU (git keeps the history)."""
    device = re.sub(r"[^a-z0-9]+", "-", document["machine"]["device"].lower()).strip("-")
    return RESULTS / f"{document.get('benchmark', 'gpu')}-{device}.json"


def gpu_table(document: dict[str, Any]) -> str:
    """The table of a `gpu` result in markdown, with the facts of the run under it."""
    rows = [("model", "figure", "atom", "vLLM", "atom / vLLM")]
    for result in document["results"]:
        cells = {name: _spread(engine, result["unit"]) for name, engine in result["engines"].items()}
        ratio = result.get("ours_over_peer")
        rows.append(
            (
                result["model"],
                result["figure"],
                cells.get("atom", ""),
                cells.get("vllm", ""),
                "" if ratio is None else f"{ratio:.2f}",
            )
        )
    return markdown_table(rows) + "\n\n" + _conditions(document)


def _conditions(document: dict[str, Any]) -> str:
    machine = document["machine"]
    sentences = [
        f"{machine['device']}: copies {document['copy_tb_per_s']:.2f} TB/s and multiplies "
        f"{document['matmul_tflop_per_s']:.0f} TFLOP/s in the same run; {document['settings']['dtype']}, "
        "dummy weights; "
        f"torch {machine['versions']['torch']}; commit {machine['commit']}, {machine['date'][:10]}."
    ]
    engines = [engine for result in document["results"] for engine in result["engines"].items()]
    versions = sorted({engine["version"] for name, engine in engines if name == "vllm"})
    if versions:
        sentences.append(
            f"The peer is vLLM {', '.join(versions)}. Each turn is a process of its own: ours, the peer, ours. "
            "In brackets the lowest and the highest value of all turns."
        )
    return " ".join(sentences)


def _spread(engine: dict[str, Any], unit: str) -> str:
    digits = 0 if unit == "tokens/s" else 2
    low, high = engine["range"]
    return f"{engine['median']:.{digits}f} {unit} ({low:.{digits}f} - {high:.{digits}f})"
