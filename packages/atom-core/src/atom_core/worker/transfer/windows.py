"""Ways of pages beside the socket: memory of a fetching engine that gets them from a sending one by other means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from atom_core.worker.transfer.wire import NixlPages, Offer, TransferError


class Window(Protocol):
    """Where pages of one prompt arrive.

    Attributes:
        pages: uint8 ``[n, page_bytes]``.
        offer: what the other side must know of it; None where they come through the socket.
    """

    pages: np.ndarray
    offer: Offer | None

    def take(self, pages: np.ndarray, there: NixlPages) -> None:
        """Read what is at a peer into these of the window's pages.

        Raises:
            TransferError: it did not come in time, or cannot be read.
        """

    def close(self) -> None:
        """Let go of what the other side needs."""


class OpenedWindow(Protocol):
    """The window of a peer."""

    def put(self, first: int, pages: Sequence[np.ndarray]) -> NixlPages | None:
        """Pages, each uint8 ``[page_bytes]``, from the `first` of the window on.

        What comes is where the peer is to read them; None where it has them now.
        """

    def close(self) -> None:
        """Let go of it."""


class Windows(Protocol):
    """A way to make windows, and to open those of peers. For several threads.

    In both, `shape` is that of the window's pages, and `mark` a number that the opening side has drawn for this
    connection alone.
    """

    def make(self, shape: tuple[int, int], mark: bytes) -> Window:
        """A window for one prompt; one without an offer where none can be had."""
        ...

    def open(self, offer: Offer, shape: tuple[int, int], mark: bytes) -> OpenedWindow | None:
        """What a peer offers; None where it cannot be reached from here: pages then go through the socket."""
        ...


class PlainWindow:
    """Memory of this process, which no peer can fill."""

    offer: Offer | None = None

    def __init__(self, shape: tuple[int, int]) -> None:
        self.pages = np.empty(shape, np.uint8)

    def take(self, pages: np.ndarray, there: NixlPages) -> None:
        raise TransferError("the peer has pages to be read, and nobody asked for that")

    def close(self) -> None:
        """Nobody else has it."""


class NoWindows:
    """All pages go through the socket."""

    def make(self, shape: tuple[int, int], mark: bytes) -> Window:
        return PlainWindow(shape)

    def open(self, offer: Offer, shape: tuple[int, int], mark: bytes) -> OpenedWindow | None:
        return None
