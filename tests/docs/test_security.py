"""docs/security.md: each promise names tests that are there, and flags that the server has."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from atom_core import EngineArgs
from atom_server import ServerOptions

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/security.md").read_text()
PROMISES = [line for line in TEXT.splitlines() if line.startswith("| ") and "---" not in line][1:]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_each_promise_names_tests_that_exist(promise):
    named = re.findall(r"`([\w/-]*test_\w+\.py)`", promise.split("|")[3])
    assert named
    for name in named:
        assert list(ROOT.glob(f"**/tests/**/{Path(name).name}")), name


def test_every_flag_is_one():
    parser = argparse.ArgumentParser()
    ServerOptions.add_cli_args(parser)
    EngineArgs.add_cli_args(parser, leave_out=("port",))
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= known
