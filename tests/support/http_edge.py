"""The server's HTTP edge without an engine, in a thread or as a process; and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from atom_server import ServerOptions
from atom_server.connections.listen import listening, open_socket
from atom_server.lifecycle import SignalFreeServer, uvicorn_settings
from health_probe import computed_by

WHOLE = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSING = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class Client:
    """A connection that sends what no HTTP library would."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(10)
        self._socket.connect(("127.0.0.1", port))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Whether the server still takes something."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def send_all(self, pieces: Iterator[bytes], *, pause: float = 0.0) -> int:
        """Send until the server closes; how many bytes it took."""
        taken = 0
        for piece in pieces:
            if not self.send(piece):
                break
            taken += len(piece)
            time.sleep(pause)
        return taken

    def receive(self, num_bytes: int = 65536) -> bytes:
        """What is there; nothing at the end of the connection."""
        try:
            return self._socket.recv(num_bytes)
        except ConnectionResetError:
            return b""

    def answer(self) -> httpx.Response:
        """The next answer, whose length its headers tell."""
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _length(received[:end]):
            data = self.receive()
            assert data, received
            received += data
        return last_answer(received)

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        parts = []
        while data := self.receive():
            parts.append(data)
        return b"".join(parts)

    def seconds_until_closed(self, at_most: float, sending: bytes = b"") -> float:
        """How long the server holds the connection: until it ends it or, while `sending`, until it takes no more."""
        started = time.monotonic()
        self._socket.settimeout(0.1)
        while (held := time.monotonic() - started) < at_most:
            with contextlib.suppress(TimeoutError):
                if not self.receive() and not sending:
                    break
            if sending and not self.send(sending):
                break
            time.sleep(0.05)
        return held


def last_answer(received: bytes) -> httpx.Response:
    """The last of several answers, whose lengths their headers tell."""
    answers = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = _length(head)
        answers.append(httpx.Response(int(first.split()[1]), headers=headers, content=received[:length]))
        received = received[length:]
    return answers[-1]


def _length(head: bytes) -> int:
    lines = (line.partition(b": ") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


@contextlib.contextmanager
def serving(app: Any, **options: Any) -> Iterator[int]:
    """Serve `app` as ``atom serve`` would, in a thread; the port, which is 0 at a Unix socket."""
    given = ServerOptions(**{"port": 0, **options})
    settings = uvicorn_settings(app, given)
    server = SignalFreeServer(settings)
    with listening(given) as listener:
        port = 0 if given.uds else listener.getsockname()[1]
        thread = threading.Thread(target=_run, args=(settings.get_loop_factory(), server, listener), daemon=True)
        thread.start()
        yield port
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"


def _run(loop_factory: Callable[..., Any] | None, server: Any, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(server.serve(sockets=[listener]))


async def plain_app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and tells its length; ``/early`` answers without reading, ``/exhaust`` takes all descriptors."""
    size = 0
    more = scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    if scope["path"] == "/exhaust":
        with contextlib.suppress(OSError):
            while True:
                os.dup(2)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class EdgeProcess:
    """`plain_app` in a process of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(self, *, max_files: int | None = None) -> None:
        command = [sys.executable, __file__, str(max_files or 0)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> EdgeProcess:
        line = self._process.stdout.readline() if self._process.stdout else ""
        assert line, self.end()
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> str:
        """Kill it; what it has written to stderr."""
        self._process.kill()
        return self._process.communicate()[1]

    def get(self, path: str) -> httpx.Response:
        """A request on a connection of its own."""
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)

    @property
    def resident_mb(self) -> float:
        """Memory that it uses, in MiB."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def computed_s(self) -> float:
        """Seconds that it has run on a processor."""
        return computed_by(self._process.pid)


async def _serve_process() -> None:
    from atom_server.connections.descriptors import watch_descriptors

    with open_socket("127.0.0.1", 0) as listener:
        options = ServerOptions(timeout_keep_alive=60, timeout_request=60)
        server = SignalFreeServer(uvicorn_settings(plain_app, options))
        print(listener.getsockname()[1], flush=True)
        watching = asyncio.ensure_future(watch_descriptors())
        await server.serve(sockets=[listener])
        watching.cancel()


if __name__ == "__main__":
    import uvloop

    if max_files := int(sys.argv[1]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    uvloop.run(_serve_process())
