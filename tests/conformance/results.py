"""`Result`: how a suite went, read from its JUnit report; and the table of all of them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.conformance.suite import Suite


@dataclass(frozen=True)
class Result:
    """How a suite went.

    Attributes:
        outcome: in words.
        passed: whether it ran, and all of it passed.
        available: whether its client could be installed.
        seconds: that its tests took.
    """

    suite: Suite
    outcome: str
    passed: bool
    seconds: float
    available: bool = True


def result_of_run(suite: Suite, returncode: int, report: Path, seconds: float) -> Result:
    """Counts the tests in a report; none, or none that ran, is no success."""
    total, failed, skipped = _count(report) if report.exists() else (0, 0, 0)
    ran = total - skipped
    passed = returncode == 0 and failed == 0 and ran > 0
    outcome = f"{ran} passed" if passed else f"FAILED: {failed} of {ran}" if ran else f"FAILED: ended with {returncode}"
    return Result(suite, outcome + (f", {skipped} skipped" if skipped else ""), passed, seconds)


def failures(results: Sequence[Result], *, skip_unavailable: bool) -> list[Result]:
    """What did not pass; a client that could not be installed counts unless it is to be skipped."""
    return [result for result in results if not result.passed and (result.available or not skip_unavailable)]


def record(results: Sequence[Result], machine: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """What is kept: the last run of each suite, those of `earlier` where `results` have no later one.

    Args:
        machine: the commit and the day of this run, as `benchmarks.machine.describe` tells them.
    """
    suites = {
        result.suite.name: {
            "client": " ".join(result.suite.client),
            "outcome": result.outcome,
            "passed": result.passed,
            "seconds": round(result.seconds),
            "commit": machine["commit"],
            "date": machine["date"],
        }
        for result in results
        if result.available
    }
    return {"benchmark": "conformance", "suites": dict(sorted((earlier.get("suites", {}) | suites).items()))}


def print_table(results: Sequence[Result]) -> None:
    """One row for each suite."""
    table = Table(title="Outside clients of our server", title_justify="left")
    for heading in ("suite", "client", "what is proved", "result"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for result in results:
        name, version = result.suite.client
        color = "green" if result.passed else "red" if result.available else "yellow"
        outcome = Text(result.outcome, style=color)  # an installer's words may look like markup
        table.add_row(result.suite.name, f"{name} {version}", result.suite.proves, outcome, f"{result.seconds:.0f}")
    Console(width=None if Console().is_terminal else 160).print(table)


def markdown_table(suites: Sequence[Suite]) -> str:
    """What there is to prove, for the docs: no results."""
    rows = [(suite.name, " ".join(suite.client), suite.proves) for suite in suites]
    return "\n".join(f"| {' | '.join(row)} |" for row in [("suite", "client", "what is proved"), ("---",) * 3, *rows])


def _count(report: Path) -> tuple[int, int, int]:
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), len(failed), len([case for case in cases if case.find("skipped") is not None])
