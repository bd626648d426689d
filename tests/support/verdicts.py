"""A pytest plugin: `--verdicts FILE` writes what became of the tests, for `tools/ci`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stop_after import NOT_BEGUN


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verdicts", type=Path, metavar="FILE", help="write what became of the tests to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--verdicts")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Verdicts(path), "verdicts-writer")


class Verdicts:
    """Counts tests, and keeps the first failure of each that failed: where, with which line, and the whole text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed = 0
        self._skipped = 0
        self._not_begun = 0
        self._failures: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(report)
        elif report.skipped:
            self._skipped += 1
            self._not_begun += NOT_BEGUN in str(report.longrepr)
        elif report.when == "call":
            self._passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        budget = session.config.pluginmanager.get_plugin("time-budget")
        found = {
            "budget": [*budget.lines()] if budget else [],
            "exit_status": int(session.exitstatus),
            "passed": self._passed,
            "skipped": self._skipped,
            "not_begun": self._not_begun,
            "failures": self._failures,
        }
        self._path.write_text(json.dumps(found, indent=1))

    def _note(self, report: Any) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = str(report.longrepr or "no reason was given").strip().splitlines()
        line = f"{crash.message.splitlines()[0]} ({Path(crash.path).name}:{crash.lineno})" if crash else lines[-1]
        self._failures.setdefault(report.nodeid, {"line": line, "text": "\n".join(lines)})
