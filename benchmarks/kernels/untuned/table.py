"""Results of untuned shapes as lines and a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.report import markdown_table

# Slower than the best by at most so much: what is aimed at, and what must be.
AIM, MOST = 0.03, 0.07
_WORST_SHOWN = 10


def describe(result: dict[str, Any]) -> str:
    """One line about a case, with both configurations where they are far apart."""
    start = f"{result['model']:<18}{result['case'] + ', ' + result.get('part', ''):<50}"
    if "failure" in result:
        return start + "FAILED " + result["failure"]
    times = f"{result['us']:9.1f} us, best {result['best_us']:9.1f} us, {result['slower']:6.1%} slower"
    if result["slower"] <= MOST:
        return start + times
    return f"{start}{times}: {_short(result['chosen'])}; best: {_short(result['best'])}"


def untuned_table(document: dict[str, Any]) -> str:
    """How much slower the rule's choice is, by operator and number of rows, with the facts of the run under it."""
    measured = [result for result in document["results"] if "failure" not in result]
    rows: list[tuple[str, ...]] = [
        ("operator", "rows", "cases", "median", f"above {AIM:.0%}", f"above {MOST:.0%}", "worst", "which is")
    ]
    for operator in dict.fromkeys(result["operator"] for result in measured):
        mine = [result for result in measured if result["operator"] == operator]
        rows.append((operator, "all", *_summary(mine)))
        for count in sorted({result["rows"] for result in mine}):
            rows.append((operator, str(count), *_summary([result for result in mine if result["rows"] == count])))
    return f"{markdown_table(rows)}\n\n{_conditions(document, measured)}"


def worst_cases(document: dict[str, Any]) -> list[str]:
    """Lines about the cases that are furthest from the best."""
    measured = [result for result in document["results"] if "failure" not in result]
    return [describe(result) for result in sorted(measured, key=_slower, reverse=True)[:_WORST_SHOWN]]


def _summary(results: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    worst = max(results, key=_slower)
    shares = (sum(_slower(result) > limit for result in results) / len(results) for limit in (AIM, MOST))
    median = statistics.median(map(_slower, results))
    return (
        *(str(len(results)), f"{median:.1%}", *(f"{share:.0%}" for share in shares)),
        *(f"{_slower(worst):.1%}", f"{worst['model']} {worst['case']}, {worst['part']}"),
    )


def _slower(result: dict[str, Any]) -> float:
    return result["slower"]


def _conditions(document: dict[str, Any], measured: Sequence[dict[str, Any]]) -> str:
    """One paragraph on where and how the run was made."""
    machine = document["machine"]
    commits = sorted({str(result.get("commit") or machine["commit"]) for result in measured})
    failed = len(document["results"]) - len(measured)
    failures = f" {failed} case{'s' if failed > 1 else ''} failed." if failed else ""
    tried = statistics.mean(result["tried"] for result in measured) if measured else 0
    return (
        f"{machine['device']}: slower than the best of {tried:.0f} configurations on average, in the median of three "
        "turns of the quickest; random data that no cache holds, replayed from CUDA graphs; torch "
        f"{machine['versions']['torch']}; commit {', '.join(commits)}, {machine['date'][:10]}.{failures}"
    )


def _short(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if value not in (False, None))
