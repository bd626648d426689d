"""How long a server in this process keeps its event loop from others, and clients that send it one request."""

from __future__ import annotations

import asyncio
import socket
import time


class LagProbe:
    """Measures how long the server's event loop keeps a callback waiting.

    Only what this process computed meanwhile counts: on a busy machine it may be kept waiting by others, and it
    computes more slowly then, which `slowness` tells.

    Attributes:
        worst: seconds of this process, whichever thread kept the callback waiting.
        own: seconds of the loop's thread alone.
    """

    def __init__(self, server) -> None:
        self._loop = server.loop
        self._stopped = False
        self.worst = self.own = 0.0

    def __enter__(self) -> LagProbe:
        self._probing = asyncio.run_coroutine_threadsafe(self._probe(), self._loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._probing.result(10)

    async def _probe(self) -> None:
        while not self._stopped:
            started, computed, own = time.perf_counter(), time.process_time(), time.thread_time()
            await asyncio.sleep(0.001)
            waited = time.perf_counter() - started - 0.001
            self.worst = max(self.worst, min(waited, time.process_time() - computed))
            self.own = max(self.own, time.thread_time() - own)


def send(server, path: str, content: bytes, *, leave_after: float | None = None, patience: float = 60) -> int:
    """The status of the answer to a body, read to its end; 0 where the client left before it came.

    Args:
        leave_after: seconds without news after which the client leaves.
        patience: where it does not leave, the seconds after which that is an error.
    """
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        connection.settimeout(patience if leave_after is None else leave_after)
        status = 0
        try:
            while data := connection.recv(2**18):
                status = status or int(data[9:12])
        except TimeoutError:
            assert leave_after is not None
    return status
