"""Results of the kernels as a table and a chart."""

from __future__ import annotations

from typing import Any

from benchmarks.report import markdown_table, with_commits


def kernels_table(document: dict[str, Any]) -> str:
    """Every case of a `kernels` result in markdown, with the facts of the run under it."""
    rows = [("operator", "model", "case", "time", "of copy rate", "of matmul rate", "torch", "runs in")]
    for result in document["results"]:
        names = (result["operator"], result["model"], result["case"])
        if "failure" in result:
            rows.append((*names, "failed", "", "", "", result["failure"]))
            continue
        rows.append(
            (
                *names,
                f"{result['us']:.1f} us",
                f"{result['copy_share']:.0%}",
                f"{result['matmul_share']:.0%}" if result["matmul_share"] else "",
                torch_ratio(result),
                result["backend"],
            )
        )
    return markdown_table(with_commits(rows, document["results"], document)) + "\n\n" + conditions(document)


def torch_ratio(result: dict[str, Any]) -> str:
    """How long torch takes for the same, or why that is not known."""
    if result["torch_us"] is None:
        return result.get("torch_failure", "")
    return f"{result['torch_us'] / result['us']:.2f}x our time"


def conditions(document: dict[str, Any]) -> str:
    """One paragraph on where and with what the run was made."""
    machine = document["machine"]
    return (
        f"{machine['device']}: copies {document['copy_tb_per_s']:.2f} TB/s and multiplies "
        f"{document['matmul_tflop_per_s']:.0f} TFLOP/s in the same run; {document['settings']['dtype']}, random data "
        "that no cache holds, replayed from CUDA graphs; "
        f"torch {machine['versions']['torch']}; commit {machine['commit']}, {machine['date'][:10]}. "
        "Shares count only bytes and operations that cannot be avoided, so launches of little work have small ones."
    )
