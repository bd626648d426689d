"""What connections between processes of ours share: bytes that must come by a deadline, and proofs of a secret.

A proof is an HMAC-SHA256 of numbers that both ends have drawn for this connection alone. It names the side that
gives it, so that neither end's proof can be taken for the other's.
"""

from __future__ import annotations

import hmac
import socket
import time


def proof(secret: bytes, side: bytes, said: bytes) -> bytes:
    """That `side` knows the secret, over what both ends have said."""
    return hmac.digest(secret, side + said, "sha256")


def send_all(end: socket.socket, data: memoryview | bytes, until: float) -> None:
    """Send all bytes before `until`, by `time.monotonic`.

    Raises:
        OSError: the connection has ended, or the time is up.
    """
    left = memoryview(data).cast("B")
    while left.nbytes:
        end.settimeout(_seconds_to(until))
        left = left[end.send(left) :]


def receive_into(end: socket.socket, view: memoryview, until: float) -> None:
    """Fill `view` before `until`, which no trickle of bytes moves.

    Raises:
        OSError: the connection has ended, or the time is up.
    """
    left = view.cast("B")
    while left.nbytes:
        end.settimeout(_seconds_to(until))
        count = end.recv_into(left)
        if not count:
            raise ConnectionResetError("the other end closed the connection")
        left = left[count:]


def receive(end: socket.socket, size: int, until: float) -> bytes:
    """The next `size` bytes; see `receive_into`."""
    data = bytearray(size)
    receive_into(end, memoryview(data), until)
    return bytes(data)


def _seconds_to(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other end took too long")
    return left
