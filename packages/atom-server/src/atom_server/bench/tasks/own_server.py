"""A server for one measurement: `atom serve` in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

import httpx

from atom_server.bench.outcome import BenchError

_LOOK_S = 0.2
_END_S = 30.0


@contextlib.contextmanager
def own_server(flags: Sequence[str]) -> Iterator[str]:
    """The URL of a server with these flags of `atom serve`, which is ready, and ends with the block.

    Raises:
        BenchError: it ended before it was ready; the message is its last line.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url, address = f"http://127.0.0.1:{port}", ["--host", "127.0.0.1", "--server-port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "atom_server", "serve", *address, *flags]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: IO[str]) -> None:
    with httpx.Client() as client:
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"{url}/ready").status_code == 200:
                    return
            time.sleep(_LOOK_S)
    log.seek(0)
    lines = log.read().splitlines() or [f"atom serve ended with {process.returncode}"]
    raise BenchError(lines[-1])
