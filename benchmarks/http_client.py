"""A lean client of streams, in a process of its own; this module is also what runs in that process.

One thread, bare sockets and `select`: it counts events and notes when each came, and parses nothing. A usual client
spends several times as much on a token as the server does, and would be what is measured.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EVENT = b'data: {"'
RECEIVE_BYTES = 1 << 16


class ClientProcess:
    """The client in its process. It answers one JSON line to each line it is sent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_client"],
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


def arrivals(ports: int | list[int], path: str, bodies: list[dict[str, Any]]) -> list[list[float]]:
    """See `ClientProcess.arrivals`; in this process."""
    in_turn = itertools.cycle([ports] if isinstance(ports, int) else ports)
    times: list[list[float]] = [[] for _ in bodies]
    with selectors.DefaultSelector() as selector:
        for index, (body, port) in enumerate(zip(bodies, in_turn, strict=False)):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, index)
            connection.sendall(_request(path, body))
        while selector.get_map():
            for key, _ in selector.select():
                _receive(selector, key, times[key.data])
    return times


def _receive(selector: selectors.BaseSelector, key: selectors.SelectorKey, times: list[float]) -> None:
    """Note the events that came on one connection; its end closes it. The server sends whole events."""
    connection: Any = key.fileobj
    data = connection.recv(RECEIVE_BYTES)
    now = time.perf_counter()
    times += [now] * data.count(EVENT)
    if not data:
        selector.unregister(connection)
        connection.close()


def _request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content


def main() -> None:
    """Serve requests for measurements over standard input and output."""
    for line in sys.stdin:
        print(json.dumps(arrivals(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
