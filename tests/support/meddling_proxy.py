"""A proxy between two ends of a TCP connection that changes, cuts or holds back what the far end answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

Meddle = Callable[[bytearray, int], bool]
"""Gets the next bytes, to be changed in place, and how many came before; False cuts the connection there."""


class MeddlingProxy:
    """Listens on a port of its own, and passes each connection on to `port`.

    Attributes:
        port: where it listens.
        num_connections: how many came so far.
    """

    def __init__(self, port: int, meddle: Meddle = lambda data, before: True) -> None:
        self._target, self._meddle = port, meddle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.num_connections = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> MeddlingProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.num_connections += 1
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += (near, far)
                for source, target, meddle in ((near, far, None), (far, near, self._meddle)):
                    threading.Thread(target=_pass_on, args=(source, target, meddle), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, meddle: Meddle | None) -> None:
    num_bytes = 0
    with contextlib.suppress(OSError):
        while data := bytearray(source.recv(1 << 16)):
            if meddle is not None and not meddle(data, num_bytes):
                break
            num_bytes += len(data)
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
