"""Suites say what they need and prove, runs are judged by their reports, and the docs list them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.environments import EnvironmentUnavailableError, environment_of
from tests.conformance.results import Result, failures, markdown_table, record, result_of_run
from tests.conformance.suite import Suite, all_suites, chosen_suites

DOCS = Path(__file__).parents[2] / "docs" / "conformance.md"
HEAD = '# /// script\n# dependencies = ["client==1.2"]\n# ///\n"""The client: all of it."""\n'
REPORT = "<testsuites><testsuite>{}</testsuite></testsuites>"


def make_suite(folder: Path, text: str = HEAD) -> Suite:
    path = folder / "one.py"
    path.write_text(text)
    return Suite.read(path)


def judge(folder: Path, report: str | None, returncode: int = 0):
    path = folder / "report.xml"
    if report is not None:
        path.write_text(REPORT.format(report))
    return result_of_run(make_suite(folder), returncode, path, 1.0)


def test_the_head_of_a_suite_is_read(tmp_path: Path):
    suite = make_suite(tmp_path)
    assert (suite.name, suite.client, suite.proves) == ("one", ("client", "1.2"), "The client: all of it.")


def test_a_suite_without_a_head_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"one\.py: no '/// script' block"):
        make_suite(tmp_path, '"""Nothing."""\n')


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no suite 'curl'; the suites are aiperf_load, anthropic_python"):
        chosen_suites(["curl"])


@pytest.mark.parametrize("suite", all_suites(), ids=lambda suite: suite.name)
def test_everything_in_an_environment_is_pinned(suite: Suite):
    sign = "@" if suite.uses_node else "=="
    packages = [*suite.without_dependencies, *suite.requirements]
    assert [package for package in packages if sign not in package[1:]] == []


def test_a_run_passes_only_if_tests_ran_and_none_failed(tmp_path: Path):
    assert judge(tmp_path, '<testcase name="a"/>').passed
    assert not judge(tmp_path, '<testcase name="a"/><testcase name="b"><failure/></testcase>').passed
    assert not judge(tmp_path, '<testcase name="a"><error/></testcase>').passed
    assert not judge(tmp_path, '<testcase name="a"><skipped/></testcase>').passed
    assert not judge(tmp_path, '<testcase name="a"/>', returncode=1).passed
    assert not judge(tmp_path, "").passed


def test_a_run_that_left_no_report_failed(tmp_path: Path):
    result = judge(tmp_path, None, returncode=2)
    assert (result.passed, result.outcome) == (False, "FAILED: ended with 2")


def test_a_client_that_cannot_be_installed_is_a_failure_unless_skipped(tmp_path: Path):
    missing = Result(make_suite(tmp_path), "UNAVAILABLE", passed=False, seconds=0.0, available=False)
    failed = Result(make_suite(tmp_path), "FAILED: 1 of 2", passed=False, seconds=1.0)
    assert failures([missing, failed], skip_unavailable=False) == [missing, failed]
    assert failures([missing, failed], skip_unavailable=True) == [failed]


def test_an_environment_that_cannot_be_made_says_so_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    path = tmp_path / "one.mjs"
    path.write_text('// /// script\n// dependencies = ["client@1"]\n// ///\n// The client.\n')
    with pytest.raises(EnvironmentUnavailableError, match="npm is not installed"):
        environment_of(Suite.read(path), tmp_path)
    assert not list(tmp_path.rglob("complete"))


def test_the_docs_list_every_suite():
    # python -m tests.conformance --list prints what belongs there
    assert markdown_table(all_suites()) in DOCS.read_text(encoding="utf-8")


def test_a_record_has_the_last_run_of_each_suite(tmp_path: Path):
    failed = judge(tmp_path, '<testcase name="a"/><testcase name="b"><failure/></testcase>', returncode=1)
    first = record([failed], {"commit": "abc", "date": "monday"}, {"suites": {"other": {"passed": True}}})
    entry = {"client": "client 1.2", "outcome": "FAILED: 1 of 2", "passed": False, "seconds": 1}
    assert first["suites"] == {"one": entry | {"commit": "abc", "date": "monday"}, "other": {"passed": True}}
    second = record([judge(tmp_path, '<testcase name="a"/>')], {"commit": "def", "date": "tuesday"}, first)
    assert (second["suites"]["one"]["passed"], second["suites"]["one"]["commit"]) == (True, "def")
