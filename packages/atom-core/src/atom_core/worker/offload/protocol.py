"""`BlockBytes`: the cache of a device as pages of bytes, beside memory of the host that they are copied to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class BlockBytes(Protocol):
    """One page is what a block id has in all layers of a rank: keys and values, latents, index keys, scales.

    `save` is called by the thread that runs steps, all else by one other thread.
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
