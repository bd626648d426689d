"""A pytest plugin: the minutes that each part of the tests may take, told with --time-budget, held if it is strict.

A budget is minutes of two quiet cores. What this machine takes longer for the same work, because it is slower or others
use it, is measured beside the tests and taken off.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from machine_speed import pace

MINUTES = {
    "packages/atom-kernels": 3,
    "packages/atom-models": 2,
    "packages/atom-core": 3.5,
    "packages/atom-server": 3,
    "packages/atom-vllm": 0.5,
    "tests": 2,
}
# A look at the machine takes 6 ms of a quiet one.
SECONDS_BETWEEN_LOOKS = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-budget",
        nargs="?",
        const="inform",
        choices=("inform", "strict"),
        help="print what each part of the tests takes of its minutes; strict: fail if one takes more",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--time-budget") is None:
        return
    config.pluginmanager.register(MachinePace(config), "machine-pace")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudget(config), "time-budget")


class MachinePace:
    """Looks, between tests and in the process that runs them, how long a fixed piece of work takes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._next_look = 0.0
        self.looks: list[float] = []

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        if time.monotonic() >= self._next_look:
            self.looks.append(pace())
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["machine_pace"] = self.looks


class TimeBudget:
    """Adds up the seconds of each part; with several workers they pass side by side, so each counts by its share."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_strict = config.getoption("--time-budget") == "strict"
        self._own_looks: list[float] = config.pluginmanager.get_plugin("machine-pace").looks
        self._workers_looks: list[float] = []
        self._num_workers = max(1, int(getattr(config.option, "numprocesses", 0) or 0))
        self.seconds = dict.fromkeys(MINUTES, 0.0)

    def pace(self) -> float:
        """How many times the time of a quiet machine passed here; never less than 1."""
        return max(1.0, statistics.fmean([*self._own_looks, *self._workers_looks] or [1.0]))

    def over(self) -> list[str]:
        """The parts that would have taken too long on a quiet machine."""
        return [part for part, minutes in MINUTES.items() if self.seconds[part] / self.pace() > 60 * minutes]

    def lines(self) -> Iterator[str]:
        """A line for each part."""
        over, pace = self.over(), self.pace()
        for part, minutes in MINUTES.items():
            seconds = self.seconds[part]
            line = f"{part:24} {seconds:6.1f} s, {seconds / pace:6.1f} of {60 * minutes:3.0f} on two quiet cores"
            yield line + ("  OVER BUDGET" if part in over else "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for part in MINUTES:
            if report.nodeid.startswith(part + "/"):
                self.seconds[part] += report.duration / self._num_workers

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self._workers_looks += getattr(node, "workeroutput", {}).get("machine_pace", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._is_strict and self.over() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"time budget: this machine took {self.pace():.2f} times a quiet one's time")
        for line in self.lines():
            terminalreporter.write_line(line, red=line.endswith("BUDGET"))
