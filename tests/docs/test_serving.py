"""docs/serving.md says what the server does: exit codes, last lines, seconds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from atom_server import lifecycle
from atom_server.cli.endings import EXIT_CODES
from atom_server.cli.main import main
from atom_server.errors import engine_dead, shutting_down

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^\$ atom (.+)\n(.+)\n\[(\d+)\]$", PAGE, re.MULTILINE)


def test_the_table_has_the_code_of_every_class():
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    assert {name: int(code) for code, name in rows} == EXIT_CODES


def test_some_endings_are_shown():
    assert [int(code) for _, _, code in SHOWN] == [2, 3, 4]


@pytest.mark.parametrize(("command", "line", "code"), SHOWN)
def test_a_shown_command_ends_as_shown(command, line, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == int(code)
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_codes_and_seconds_are_those_of_the_code():
    assert {engine_dead("").code, shutting_down().code} <= set(re.findall(r"`(\w+)`", PAGE))
    assert f"with code 6, {lifecycle._LAST_WORDS_S:g} seconds later" in PAGE
    assert "retry-after" in shutting_down().headers
    for signal_number in lifecycle._SIGNALS:
        assert signal_number.name in PAGE
