"""`HostBytes`: pages of a cache that lies in the host's own memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from atom_core.worker.offload.rows import rows_of


class HostBytes:
    """See `BlockBytes`. numpy copies without the interpreter's lock, and starts no threads.

    Args:
        tensors: a tensor for every place of a page, ``[num_blocks, ...]``.
        num_places: pages in memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], num_places: int) -> None:
        self._rows = [(row.numpy(), part) for row, part in rows_of(tensors)]
        self.page_bytes = sum(row.shape[1] for row, _ in self._rows)
        # Memory of zeros costs nothing before it is first written.
        self.memory = np.zeros((num_places, self.page_bytes), np.uint8)

    def save(self, block_ids: Sequence[int], places: Sequence[int]) -> None:
        sources, targets = np.array(block_ids), np.array(places)
        for row, part in self._rows:
            self.memory[targets, part] = row[sources]

    def wait_for_saves(self) -> None:
        """They were copied at once."""

    def load(self, pages: np.ndarray, block_ids: Sequence[int]) -> None:
        targets = np.array(block_ids)
        for row, part in self._rows:
            row[targets] = pages[:, part]
