"""A process that tells what it finds in lines of JSON, and is ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.settings import ROOT

# Lines of a failed process's stderr that are shown, and characters of each.
LAST_LINES, LINE_LENGTH = 8, 240


def told_by(
    command: Sequence[str], environment: dict[str, str], *, seconds: float, log: Path | None = None
) -> Generator[dict[str, Any], None, None]:
    """What `command` tells, line by line, and at last ``{"failure": ...}`` if it did not end well.

    Args:
        seconds: it may take.
        log: keeps its stderr, of which else only the end is told, on failure.
    """
    with contextlib.ExitStack() as stack:
        if log is None:
            errors = stack.enter_context(tempfile.TemporaryFile())
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            errors = stack.enter_context(log.open("w+b"))
        # A session of its own, so that compilers and workers that it starts end with it.
        started = time.monotonic()
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        )
        stack.callback(_end, process)
        timer = threading.Timer(seconds, _end, [process])
        stack.callback(timer.cancel)
        timer.start()
        for line in process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        if status := process.wait():
            late = f", ended after {seconds:.0f} s" if time.monotonic() - started >= seconds else ""
            yield {"failure": f"status {status}{late}: {_end_of(errors)}"}


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(errors: Any) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 16384))
    lines = errors.read().decode(errors="replace").splitlines()
    return "\n".join(line[:LINE_LENGTH] for line in lines[-LAST_LINES:])
