"""What blocks that live elsewhere need of a worker: `BlockBytes` of a device, and a `BlockCarrier` for each place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from atom_core.messages import Transfer, TransferKind


class BlockBytes(Protocol):
    """One page is what a block id has in all layers of a rank: keys and values, latents, index keys, scales.

    `save` is called by the thread that runs steps, all else by others; `load` by one at a time.
    """

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        ...

    @property
    def memory(self) -> np.ndarray:
        """uint8 ``[num_places, page_bytes]``: pages in the host's memory."""
        ...

    def save(self, block_ids: Sequence[int], places: Sequence[int]) -> None:
        """Copy blocks to `memory`, before anything that is launched later can overwrite them."""
        ...

    def wait_for_saves(self) -> None:
        """Until `memory` has what was saved so far."""
        ...

    def load(self, pages: np.ndarray, block_ids: Sequence[int]) -> None:
        """Copy pages ``[n, page_bytes]`` to blocks, and wait for the end of it."""
        ...


class BlockCarrier(Protocol):
    """Knows the way to one place where blocks live: memory and a disk, or another engine.

    All is called by the thread that runs steps, and nothing waits for anything.
    """

    @property
    def kinds(self) -> Sequence[TransferKind]:
        """The transfers that it does."""
        ...

    def begin(self, transfer: Transfer) -> Future[int]:
        """Begin a transfer; what comes is how many of its first copies are right. It never raises."""
        ...

    def look(self) -> None:
        """Called now and then: end what has taken too long."""
        ...

    def close(self) -> None:
        """Finish what runs, drop the rest, and let go of what is kept. No transfer follows."""
        ...
