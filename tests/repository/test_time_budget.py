"""The budget of the tests is printed and held."""

from __future__ import annotations

import os

import pytest

import time_budget

pytest_plugins = ["pytester"]


@pytest.fixture
def one_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with one test in a part of the tests that has no time at all, on a quiet machine."""
    pytester.makepyfile(**{"tests/test_one": "def test_one(): pass"})
    monkeypatch.setattr(time_budget, "MINUTES", {"tests": 0})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    without = [part for name in ("xdist", "asyncio", "cacheprovider") for part in ("-p", f"no:{name}")]
    return pytester.runpytest_inprocess("-p", "time_budget", *without, *arguments)


def test_a_run_over_budget_fails_and_says_where(one_test: pytest.Pytester):
    result = run(one_test, "--time-budget")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*time budget*", "tests *0.0 s of*0 s  OVER BUDGET"])


def test_a_run_within_its_budget_passes(one_test: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time_budget, "MINUTES", {"tests": 1})
    result = run(one_test, "--time-budget")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["tests *0.0 s of  60 s"])


def test_the_budget_is_not_held_unless_asked_for(one_test: pytest.Pytester):
    assert run(one_test).ret == pytest.ExitCode.OK


def test_the_budget_is_not_held_against_a_run_on_a_busy_machine(
    one_test: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0 * os.cpu_count(), 100.0 * os.cpu_count(), 0.5))
    result = run(one_test, "--time-budget")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["Not held against this run*"])
