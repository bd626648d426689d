"""Servers in processes of their own, for what is measured from outside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class ServerProcess:
    """A server that `command` starts, once it says that it is ready.

    Args:
        port: where it will listen.
        ready: the path that is answered with 200 when it is.
        start_seconds: the time that it has for this.
        environment: what its process gets; None is what this one has.
        host: where it will listen, as seen from here.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        ready: str = "/ready",
        start_seconds: float = 120.0,
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.port, self._ready, self._host = port, ready, host
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
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

    def kill(self) -> None:
        """Kill all of its processes at once (SIGKILL)."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        self._folder.cleanup()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._host}:{self.port}{self._ready}", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


class Server(ServerProcess):
    """``atom serve`` on a free port of this machine; `flags` are its own."""

    def __init__(self, model: Path, flags: Sequence[str], *, start_seconds: float = 120.0) -> None:
        port = free_port()
        place = ["--model", str(model), "--server-port", str(port), "--log-level", "warning"]
        command = [sys.executable, "-m", "atom_server", "serve", *place, *flags]
        super().__init__(command, port, start_seconds=start_seconds)
