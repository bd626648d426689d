"""docs/security.md: each promise names tests that are there, and flags that the server has."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from atom_core import EngineArgs
from atom_server import ServerOptions

ROOT = Path(__file__).parents[2]
TESTS = [ROOT / "tests", *ROOT.glob("packages/*/tests")]
TEXT = (ROOT / "docs/security.md").read_text()
_ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "---" not in line]
PROMISES = [line for line in _ROWS if not line.endswith("| tests |")]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_each_promise_names_tests_that_exist(promise):
    named = re.findall(r"`([\w/-]*test_\w+\.py)(?:::(\w+))?`", promise.split("|")[3])
    assert named
    for name, function in named:
        [file] = [file for folder in TESTS for file in folder.rglob(Path(name).name)]
        assert not function or f"def {function}(" in file.read_text(), function


def test_every_flag_is_one():
    parser = argparse.ArgumentParser()
    ServerOptions.add_cli_args(parser)
    EngineArgs.add_cli_args(parser, leave_out=("port",))
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= known
