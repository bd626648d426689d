"""A server whose model's folder is read by its own code: the banner names the files, and no client runs them.

One that was not told to run code is asked in test_serving_process.py, where one runs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("transformers")

from folder_with_code import leave_mark, make_folder_with_code

ASKED = {"prompt": "Hello there", "max_tokens": 4, "temperature": 0, "trust_remote_code": True}


def test_the_banner_names_the_files_that_ran_and_no_request_runs_them(
    tmp_path: Path, serve_process: Callable[..., Any]
):
    folder, made = make_folder_with_code(tmp_path / "mine"), tmp_path / "made"
    made.mkdir()
    marks = [leave_mark(folder, name) for name in ("configuration_mine.py", "tokenization_mine.py")]
    flags = ("--model", str(folder), "--trust-remote-code")
    with serve_process(*flags, environment={"TMPDIR": str(made)}) as running:
        [line] = [line for line in running.lines if line.split()[:1] == ["code"]]
        assert line.split(maxsplit=1)[1] == (
            "ran configuration_mine.py, tokenization_mine.py, pieces.py of the model's folder, to read its "
            "configuration and tokenizer"
        )
        for mark in marks:
            mark.unlink()
        answer = httpx.post(f"{running.url}/v1/completions", json=ASKED)
        assert answer.status_code == 200, answer.text
        other = httpx.post(f"{running.url}/v1/completions", json=ASKED | {"model": str(tmp_path / "another")})
        assert other.status_code == 404, other.text
        assert not any(mark.exists() for mark in marks)
        assert list(made.glob("atom-folder-code-*")) != []
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    assert list(made.glob("atom-folder-code-*")) == []
