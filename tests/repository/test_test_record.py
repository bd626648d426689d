"""A record of tests says what was run, where, and what failed."""

from __future__ import annotations

import json

from tools.test_record import ROOT, main

SUPPORT = str(ROOT / "tests/support")

TESTS = """
def test_that_passes():
    pass


def test_that_fails():
    assert 1 == 2
"""


def test_a_record_names_the_command_the_commit_and_each_failure(tmp_path):
    (tmp_path / "test_two.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {SUPPORT!r})\npytest_plugins = ['verdicts']\n"
    )
    output = tmp_path / "record.json"
    status = main(["two", "--commit", "abc123", "--output", str(output), "--", "-n", "0", "-q", str(tmp_path)])
    record = json.loads(output.read_text())
    assert status == record["exit_status"] == 1
    assert record["command"] == ["pytest", "-n", "0", "-q", str(tmp_path)]
    assert record["machine"]["commit"] == "abc123"
    assert (record["passed"], record["skipped"]) == (1, 0)
    [(test_id, line)] = record["failed"].items()
    assert test_id.endswith("test_that_fails")
    assert "1 == 2" in line
