"""`Channel`: whole messages over one end of a connection between an engine and a rank. Torch-free."""

from __future__ import annotations

import contextlib
import socket
import struct

_LENGTH = struct.Struct("<Q")
# No message is longer: a step has its tokens in it, and an answer its log-probabilities.
LONGEST_BYTES = 1 << 30
# So much of a message lies in the socket while its reader is busy, and its writer goes on.
BUFFER_BYTES = 4 << 20


class Channel:
    """One thread may send while another one receives.

    On one host the connection is a pair of sockets without a name: there is no file and no port, and each end sees at
    once that the other one is closed. Between hosts it is one of TCP whose ends have proved themselves.
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
        """Wait for the next message; None once the other end is closed.

        Raises:
            ConnectionError: it is longer than a message may be.
        """
        if (head := self._read(_LENGTH.size)) is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > LONGEST_BYTES:
            raise ConnectionError(f"a message of {size} bytes was announced, and the longest has {LONGEST_BYTES}")
        return self._read(size)

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
