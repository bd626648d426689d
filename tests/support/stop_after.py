"""A pytest plugin: `--stop-after SECONDS` skips the tests that are not begun by then."""

from __future__ import annotations

import time

import pytest

NOT_BEGUN = "not begun within"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stop-after", type=float, metavar="SECONDS", help="skip tests that are not begun by then")


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("--stop-after")
    if seconds is not None:
        config.pluginmanager.register(Deadline(seconds), "deadline")


class Deadline:
    """Looks at the clock before each test."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip(f"{NOT_BEGUN} {self._seconds:g} s")
