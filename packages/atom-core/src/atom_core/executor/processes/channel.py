"""`Channel`: whole messages over one end of a pair of sockets, which no third process can reach. Torch-free."""

from __future__ import annotations

import contextlib
import socket
import struct

_LENGTH = struct.Struct("<Q")
# So much of a message lies in the socket while its reader is busy, and its writer goes on.
BUFFER_BYTES = 4 << 20


class Channel:
    """One thread may send while another one receives.

    The pair has no name: there is no file and no port, and each end sees at once that the other one is closed.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def send(self, data: bytes) -> None:
        """Send a message.

        Raises:
            ConnectionError: the other end is closed.
        """
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> bytes | None:
        """Wait for the next message; None once the other end is closed."""
        head = self._read(_LENGTH.size)
        return None if head is None else self._read(_LENGTH.unpack(head)[0])

    def close(self) -> None:
        """Close this end, and wake who receives from it."""
        with contextlib.suppress(OSError):  # the other end may have closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            try:
                count = self._socket.recv_into(view[filled:])
            except OSError:
                return None
            if not count:
                return None
            filled += count
        return bytes(data)
