"""`HostPlaces`: pages in the host's memory that blocks of the cache were saved to, and the way back into the cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from atom_core.messages import BlockCopy
from atom_core.worker.offload.protocol import BlockBytes


class HostPlaces:
    """Places ``0 ..`` of `blocks`, which transfers of several threads read, and the blocks that these write."""

    def __init__(self, blocks: BlockBytes) -> None:
        self._blocks = blocks
        self._is_saved = bytearray(len(blocks.memory))
        self._is_loading = threading.Lock()

    def __len__(self) -> int:
        return len(self._is_saved)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._blocks.page_bytes

    @property
    def memory(self) -> np.ndarray:
        """All pages, uint8 ``[n, page_bytes]``."""
        return self._blocks.memory

    def save(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks to places, before anything that is launched later can overwrite the blocks."""
        if not copies:
            return
        for copy in copies:
            self._is_saved[copy.target] = 0
        self._blocks.save([copy.source for copy in copies], [copy.target for copy in copies])
        for copy in copies:
            self._is_saved[copy.target] = 1

    def wait_for_saves(self) -> None:
        """Until places have what was saved so far."""
        self._blocks.wait_for_saves()

    def is_saved(self, place: int) -> bool:
        """Whether the place has a block: a step that failed may not have got so far."""
        return bool(self._is_saved[place])

    def page(self, place: int) -> np.ndarray:
        """uint8 ``[page_bytes]``."""
        return self._blocks.memory[place]

    def load(self, pages: np.ndarray, block_ids: Sequence[int]) -> None:
        """Copy pages ``[n, page_bytes]`` to blocks, and wait for the end of it. For any thread."""
        with self._is_loading:
            self._blocks.load(pages, block_ids)
