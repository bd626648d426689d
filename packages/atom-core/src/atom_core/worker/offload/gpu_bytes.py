"""`GpuBytes`: pages of a cache on a GPU, pinned memory beside it, and a stream for the copies between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from atom_core.worker.offload.rows import rows_of

# Memory of the GPU through which pages go: of two buffers one is filled while the other is sent, and one takes loads.
STAGING_BYTES = 32 << 20
NUM_BUFFERS = 3


class GpuBytes:
    """See `BlockBytes`.

    Blocks are gathered by the stream that computes, which is quick, and sent to the host by another one, so that steps
    wait for a transfer only where both buffers are on their way.

    Args:
        tensors: a tensor for every place of a page, ``[num_blocks, ...]``.
        num_places: pages in memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], num_places: int) -> None:
        self._rows = list(rows_of(tensors))
        self._device = tensors[0].device
        self.page_bytes = self._rows[-1][1].stop
        self._pinned = torch.zeros((num_places, self.page_bytes), dtype=torch.uint8, pin_memory=True)
        self.memory = self._pinned.numpy()
        count = max(STAGING_BYTES // self.page_bytes, 1)
        self._staging = [self._make_staging(count) for _ in range(2)]
        self._sent = [torch.cuda.Event() for _ in self._staging]
        self._arrivals = self._make_staging(count)
        self._bounce = torch.empty((count, self.page_bytes), dtype=torch.uint8, pin_memory=True)
        self._saving, self._loading = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)
        self._turn = 0

    def save(self, block_ids: Sequence[int], places: Sequence[int]) -> None:
        computing = torch.cuda.current_stream(self._device)
        for start in range(0, len(block_ids), len(self._staging[0])):
            part = slice(start, start + len(self._staging[0]))
            staging, sent = self._staging[self._turn], self._sent[self._turn]
            self._turn = 1 - self._turn
            computing.wait_event(sent)
            sources = self._ids(block_ids[part])
            for row, columns in self._rows:
                staging[: len(sources), columns] = row[sources]
            self._saving.wait_stream(computing)
            with torch.cuda.stream(self._saving):
                for index, place in enumerate(places[part]):
                    self._pinned[place].copy_(staging[index], non_blocking=True)
                sent.record(self._saving)

    def wait_for_saves(self) -> None:
        self._saving.synchronize()

    def load(self, pages: np.ndarray, block_ids: Sequence[int]) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._loading), torch.inference_mode():
            for start in range(0, len(block_ids), len(self._arrivals)):
                targets = self._ids(block_ids[start : start + len(self._arrivals)])
                bounce, arrived = self._bounce[: len(targets)], self._arrivals[: len(targets)]
                bounce.numpy()[:] = pages[start : start + len(targets)]
                arrived.copy_(bounce, non_blocking=True)
                for row, columns in self._rows:
                    row[targets] = arrived[:, columns]
                self._loading.synchronize()

    def _make_staging(self, count: int) -> torch.Tensor:
        return torch.empty((count, self.page_bytes), dtype=torch.uint8, device=self._device)

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, pin_memory=True).to(self._device, non_blocking=True)
