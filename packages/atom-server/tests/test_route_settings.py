"""What is wrong with the settings of `atom route` is named in one line."""

from __future__ import annotations

import pytest

from atom_server.cli.main import main


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--decode", "http://h:1"], "prefill names no server; give --prefill"),
        (["--prefill", "http://h:1"], "decode names no server"),
        (["--prefill", "h:1", "--decode", "http://h:1"], "'h:1' is not the URL of a server"),
    ],
)
def test_settings_that_are_wrong_are_named_in_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
):
    assert main(["route", "--port", "0", *flags]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
