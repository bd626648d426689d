"""The budget of the tests is told in the time of a quiet machine, and held where it is strict."""

from __future__ import annotations

import pytest

import time_budget

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the installed ones anew takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def one_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with one test in a part of the tests that has no time at all."""
    pytester.makepyfile(**{"tests/test_one": "def test_one(): pass"})
    monkeypatch.setattr(time_budget, "MINUTES", {"tests": 0})
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "time_budget", *arguments)


def test_a_strict_run_over_budget_fails_and_says_where(one_test: pytest.Pytester):
    result = run(one_test, "--time-budget=strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*time budget*", "tests *0.0 s,*0.0 of*0 on two quiet cores  OVER BUDGET"])


def test_a_run_over_budget_passes_and_says_where_unless_it_is_strict(one_test: pytest.Pytester):
    result = run(one_test, "--time-budget=inform")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["tests *OVER BUDGET"])


def test_a_strict_run_within_its_budget_passes(one_test: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time_budget, "MINUTES", {"tests": 1})
    result = run(one_test, "--time-budget=strict")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["tests *0.0 of  60 on two quiet cores"])


def test_nothing_is_said_of_the_budget_unless_asked_for(one_test: pytest.Pytester):
    result = run(one_test)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*time budget*")


def test_a_machine_that_takes_twice_the_time_has_twice_the_seconds(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    pytester.makepyfile(**{"tests/test_one": "import time\ndef test_one(): time.sleep(0.15)"})
    monkeypatch.setattr(time_budget, "MINUTES", {"tests": 0.1 / 60})
    monkeypatch.setattr(time_budget, "pace", lambda: 1.0)
    assert run(pytester, "--time-budget=strict").ret == pytest.ExitCode.TESTS_FAILED
    monkeypatch.setattr(time_budget, "pace", lambda: 1000.0)
    assert run(pytester, "--time-budget=strict").ret == pytest.ExitCode.OK


def test_the_workers_say_how_long_the_machine_took(pytester: pytest.Pytester):
    pytester.makeconftest("import time_budget\ntime_budget.pace = lambda: 7.0")
    pytester.makepyfile(**{"tests/test_one": "def test_one(): pass"})
    result = run(pytester, "-p", "xdist.plugin", "-n", "1", "--time-budget=inform")
    result.stdout.fnmatch_lines(["*this machine took 7.00 times a quiet one's time*"])
