"""A pytest plugin: the minutes that each part of the tests may take on two cores, held with --time-budget."""

from __future__ import annotations

import os

import pytest

# Caps that leave room; all parts together take less than fifteen minutes on a quiet machine.
MINUTES = {
    "packages/atom-kernels": 6,
    "packages/atom-models": 2.5,
    "packages/atom-core": 4,
    "packages/atom-server": 4,
    "packages/atom-vllm": 1,
    "tests": 3,
}

# Two workers and the engines that they test come to about 1.5 for each of two cores; a load past this is others' work.
BUSY_LOAD = 2.5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-budget", action="store_true", help="fail if a part of the tests takes more than its minutes"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudget(config), "time-budget")


class TimeBudget:
    """Adds up the seconds of each part; with several workers they pass side by side, so each counts by its share."""

    def __init__(self, config: pytest.Config) -> None:
        self.enforced = config.getoption("--time-budget")
        self.num_workers = max(1, int(getattr(config.option, "numprocesses", 0) or 0))
        self.seconds = dict.fromkeys(MINUTES, 0.0)
        self.machine_was_busy = False

    def over(self) -> list[str]:
        """The parts that took too long."""
        return [part for part, minutes in MINUTES.items() if self.seconds[part] > 60 * minutes]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for part in MINUTES:
            if report.nodeid.startswith(part + "/"):
                self.seconds[part] += report.duration / self.num_workers

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.machine_was_busy = os.getloadavg()[1] > BUSY_LOAD * (os.cpu_count() or 1)
        if self.enforced and self.over() and not self.machine_was_busy and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.enforced:
            return
        terminalreporter.section("time budget")
        over = self.over()
        for part, minutes in MINUTES.items():
            line = f"{part:24} {self.seconds[part]:6.1f} s of {60 * minutes:3.0f} s"
            terminalreporter.write_line(line + ("  OVER BUDGET" if part in over else ""), red=part in over)
        if over and self.machine_was_busy:
            terminalreporter.write_line("Not held against this run: other work kept the machine busy.")
