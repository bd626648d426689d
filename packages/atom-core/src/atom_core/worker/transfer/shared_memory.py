"""`SharedMemory`: windows between two engines of one machine, in memory that both have mapped.

The memory has no name, so that nothing is left of it however its processes end. The side that opens it knows it by the
number that it has drawn itself: what has the same process and descriptor elsewhere, such as on another machine, is not
taken for it, and pages go through the socket.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence

import numpy as np

from atom_core.worker.transfer.windows import OpenedWindow, PlainWindow, Window
from atom_core.worker.transfer.wire import Offer, SharedOffer

NAME = "atom-pages"


class SharedWindow(PlainWindow):
    """See `Window`. Its size is sealed: nobody can take memory away from who writes to it."""

    def __init__(self, shape: tuple[int, int], mark: bytes) -> None:
        size = math.prod(shape) + len(mark)
        self._descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self._descriptor, 0, size)  # too little memory is an error here, not a signal later
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self.pages, place = _mapped(self._descriptor, shape, len(mark))
        except BaseException:
            self.close()
            raise
        place[:] = np.frombuffer(mark, np.uint8)
        self.offer: Offer | None = SharedOffer(os.getpid(), self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OpenedSharedWindow:
    """See `OpenedWindow`. `pages` is uint8 ``[n, page_bytes]``."""

    def __init__(self, pages: np.ndarray) -> None:
        self._pages = pages

    def put(self, first: int, pages: Sequence[np.ndarray]) -> None:
        np.stack(pages, out=self._pages[first : first + len(pages)])

    def close(self) -> None:
        del self._pages


class SharedMemory:
    """See `Windows`."""

    def make(self, shape: tuple[int, int], mark: bytes) -> Window:
        try:
            return SharedWindow(shape, mark)
        except (OSError, AttributeError):  # the system has no such memory, or no more of it
            return PlainWindow(shape)

    def open(self, offer: Offer, shape: tuple[int, int], mark: bytes) -> OpenedWindow | None:
        if not isinstance(offer, SharedOffer):
            return None
        try:
            pages, place = _opened(offer, shape, len(mark))
        except (OSError, ValueError):
            return None
        return OpenedSharedWindow(pages) if place.tobytes() == mark else None


def _opened(offer: SharedOffer, shape: tuple[int, int], mark_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    path = f"/proc/{offer.process}/fd/{offer.descriptor}"
    if os.readlink(path) != f"/memfd:{NAME} (deleted)":
        raise ValueError("a peer names what is no window: a file or a device must not even be opened")
    descriptor = os.open(path, os.O_RDWR)
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("the peer could make it smaller while it is written to, which would end this process")
        return _mapped(descriptor, shape, mark_bytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, shape: tuple[int, int], mark_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The pages, uint8 of `shape`, and the place of the mark behind them."""
    size = math.prod(shape)
    memory = np.frombuffer(mmap.mmap(descriptor, size + mark_bytes), np.uint8)
    return memory[:size].reshape(shape), memory[size:]
