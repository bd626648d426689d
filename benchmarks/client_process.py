"""The client of `atom bench serve` in a process of its own; this module is also what runs in that process.

It counts events and notes when each came, and parses nothing. A usual client spends several times as much on a token as
the server does, and would be what is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atom_server.bench import event_loop
from atom_server.bench.http_exchange import exchange, request_bytes

EVENT = b'data: {"'


class ClientProcess:
    """The client in its process. It answers one JSON line to each line it is sent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.client_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def arrivals(self, ports: int | list[int], path: str, bodies: list[dict[str, Any]]) -> list[list[float]]:
        """Send all `bodies` at once; for each stream, the seconds at which its events came.

        Several `ports` get one body each in turn.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the client's process was closed")
        self._process.stdin.write(json.dumps({"ports": ports, "path": path, "bodies": bodies}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client's process ended with {self._process.wait()}; its error is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(timeout=10)


async def arrivals(ports: int | list[int], path: str, bodies: list[dict[str, Any]]) -> list[list[float]]:
    """See `ClientProcess.arrivals`; in this process. The server sends whole events."""
    in_turn = itertools.cycle([ports] if isinstance(ports, int) else ports)

    async def stream(body: dict[str, Any], port: int) -> list[float]:
        url, times = urlsplit(f"http://127.0.0.1:{port}"), []

        def note(data: bytes, now: float) -> None:
            times.extend([now] * data.count(EVENT))

        await exchange(url, request_bytes("POST", url, path, body=body), note)
        return times

    return await asyncio.gather(*(stream(body, port) for body, port in zip(bodies, in_turn, strict=False)))


def main() -> None:
    """Serve requests for measurements over standard input and output."""
    for line in sys.stdin:
        print(json.dumps(event_loop.run(arrivals(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
