"""`atom serve` in a process of its own, as users start it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 180.0


@contextmanager
def running_server(flags: list[str], log: Path, python: str = sys.executable) -> Iterator[str]:
    """Serves while the block runs; gives the URL without a path. What the server says is in `log`.

    Args:
        python: an interpreter whose environment has the server.

    Raises:
        RuntimeError: it ended, or was not ready in `START_SECONDS`.
    """
    with log.open("w") as output:
        command = [python, "-m", "atom_server", "serve", "--server-port", "0", *flags]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield _url_when_ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url_when_ready(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == "API":
                url = words[1].removesuffix("/v1")
                with urllib.request.urlopen(f"{url}/health", timeout=60):
                    return url
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
