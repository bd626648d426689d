"""Frames between a process and the one that it answers: a mark of one byte, the length, and so many bytes."""

from __future__ import annotations

import os
import select
import struct
import time
from typing import BinaryIO

_HEADER = struct.Struct("<BQ")
_PIECE = 1 << 20


def write_frame(file: BinaryIO, message: bytes, *, mark: int = 0) -> None:
    """Write a whole frame, however long that takes."""
    file.write(_HEADER.pack(mark, len(message)))
    file.write(message)
    file.flush()


def read_frame(file: BinaryIO) -> bytes | None:
    """The message of the next frame; None at the end of the file."""
    header = file.read(_HEADER.size)
    return file.read(_HEADER.unpack(header)[1]) if len(header) == _HEADER.size else None


class TimedFrames:
    """One end of two pipes whose other end may stop at any time; nothing here waits longer than until a deadline.

    Args:
        sink, source: descriptors, which are made non-blocking.
    """

    def __init__(self, sink: int, source: int) -> None:
        self._sink, self._source = sink, source
        for descriptor in (sink, source):
            os.set_blocking(descriptor, False)

    def send(self, message: bytes, deadline: float) -> None:
        """Write a frame.

        Raises:
            TimeoutError: `deadline`, by the monotonic clock, passed before all of it was taken.
            BrokenPipeError: the other end is closed.
        """
        for part in (_HEADER.pack(0, len(message)), message):
            rest = memoryview(part)
            while rest:
                _wait(self._sink, select.POLLOUT, deadline)
                rest = rest[os.write(self._sink, rest[:_PIECE]) :]

    def receive(self, deadline: float) -> tuple[int, bytes] | None:
        """The mark and the message of a frame; None where the other end was closed before the end of one.

        Raises:
            TimeoutError: `deadline`, by the monotonic clock, passed before all of it came.
        """
        header = self._read(_HEADER.size, deadline)
        if header is None:
            return None
        mark, length = _HEADER.unpack(header)
        message = self._read(length, deadline)
        return None if message is None else (mark, message)

    def _read(self, length: int, deadline: float) -> bytes | None:
        pieces, missing = [], length
        while missing:
            _wait(self._source, select.POLLIN, deadline)
            piece = os.read(self._source, min(missing, _PIECE))
            if not piece:
                return None
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Wait until there is room, or something to read, or the other end is closed."""
    poll = select.poll()  # takes any descriptor; select() only those below 1,024
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
