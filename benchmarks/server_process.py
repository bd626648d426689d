"""``atom serve`` in a process of its own, for what is measured from outside."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine


class Server:
    """A server on a free port of this machine; `flags` are those of `atom serve`."""

    def __init__(self, model: Path, flags: Sequence[str], *, start_seconds: float = 120.0) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        place = ["--model", str(model), "--server-port", str(self.port), "--log-level", "warning"]
        command = [sys.executable, "-m", "atom_server", "serve", *place, *flags]
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + start_seconds
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise RuntimeError(
                    f"the server did not start: {' '.join(command)}\n{self._log.read_text(errors='replace')[-4000:]}"
                )
            time.sleep(0.1)

    @property
    def pids(self) -> list[int]:
        """The processes of the server and of its engine."""
        return [self._process.pid, *machine.children(self._process.pid)]

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=30)
        self._folder.cleanup()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
