"""`BlockMover`: carries out what steps say of blocks that live elsewhere, and tells what has ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

from atom_core.messages import BlockCopy, BlockTransfers, Transfer, TransferResult
from atom_core.seldom import SeldomWarning
from atom_core.worker.offload.disk import DiskPages
from atom_core.worker.offload.protocol import BlockBytes
from atom_core.worker.ranks.protocol import WorkerRanks

logger = logging.getLogger(__name__)

# A step with nothing to compute waits for so long for a transfer to end: requests may come meanwhile.
WAIT_SECONDS = 0.005
CHUNK_BYTES = 8 << 20


class BlockMover:
    """Saves at once, and moves all else in a thread of its own, one transfer after the other.

    Every rank moves its own part of each block. What failed on one rank has failed, and what has not ended on one has
    not ended: the ranks agree on it.

    Args:
        blocks: the cache, and places ``0 ..`` in memory.
        disk: the places behind those in memory; None without.
        ranks: those that get the same steps.
    """

    def __init__(self, blocks: BlockBytes, disk: DiskPages | None, ranks: WorkerRanks) -> None:
        self._blocks, self._disk, self._ranks = blocks, disk, ranks
        self._num_in_memory = len(blocks.memory)
        self._warn = SeldomWarning(logger)
        self._is_saved = bytearray(self._num_in_memory)
        self._chunk = max(CHUNK_BYTES // blocks.page_bytes, 1)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocks")
        self._running: dict[int, Future[int]] = {}

    def begin(self, transfers: BlockTransfers) -> None:
        """Carry out the saves, and begin what is to begin; what is not awaited any more is forgotten."""
        saves = transfers.saves
        if saves:
            for copy in saves:
                self._is_saved[copy.target] = 0
            self._blocks.save([copy.source for copy in saves], [copy.target for copy in saves])
            for copy in saves:
                self._is_saved[copy.target] = 1
        awaited = set(transfers.awaited)
        self._running = {number: future for number, future in self._running.items() if number in awaited}
        for transfer in transfers.begun:
            self._running[transfer.transfer_id] = self._thread.submit(self._move, transfer)

    def results(self, transfers: BlockTransfers, *, wait_for_one: bool) -> tuple[TransferResult, ...]:
        """Those of the awaited transfers that have ended on every rank.

        Args:
            wait_for_one: wait for a moment where none has ended.
        """
        running = [self._running[number] for number in transfers.awaited if number in self._running]
        if wait_for_one and running and not any(future.done() for future in running):
            wait(running, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        agreed = ((number, self._ranks.smallest(self._num_done(number))) for number in transfers.awaited)
        return tuple(TransferResult(number, num_done) for number, num_done in agreed if num_done >= 0)

    def close(self) -> None:
        """Finish what runs, drop the rest, and remove what is on the disk."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._disk is not None:
            self._disk.close()

    def _num_done(self, number: int) -> int:
        """Copies that are right; -1 while it runs. What an earlier failure kept from beginning has none."""
        future = self._running.get(number)
        if future is None:
            return 0
        return future.result() if future.done() else -1

    def _move(self, transfer: Transfer) -> int:
        """Copy in order; how many copies are right."""
        num_done = 0
        try:
            self._blocks.wait_for_saves()
            for start in range(0, len(transfer.copies), self._chunk):
                copies = transfer.copies[start : start + self._chunk]
                count = self._load(copies) if transfer.kind == "load" else self._write(copies)
                num_done += count
                if count < len(copies):
                    break
        except Exception:
            logger.exception("blocks of the KV cache could not be moved; their tokens are computed again")
        return num_done

    def _load(self, copies: Sequence[BlockCopy]) -> int:
        pages = np.empty((len(copies), self._blocks.page_bytes), np.uint8)
        num_right = next((i for i, copy in enumerate(copies) if not self._read(copy.source, pages[i])), len(copies))
        self._blocks.load(pages[:num_right], [copy.target for copy in copies[:num_right]])
        return num_right

    def _read(self, place: int, into: np.ndarray) -> bool:
        if place < self._num_in_memory:
            into[:] = self._blocks.memory[place]
            return bool(self._is_saved[place])
        is_right = self._disk is not None and self._disk.read(place - self._num_in_memory, into)
        if not is_right:
            logger.warning("a block of the KV cache is damaged on the disk; its tokens are computed again")
        return is_right

    def _write(self, copies: Sequence[BlockCopy]) -> int:
        for index, copy in enumerate(copies):
            if self._disk is None or not self._is_saved[copy.source]:
                return index
            try:
                self._disk.write(copy.target - self._num_in_memory, self._blocks.memory[copy.source])
            except OSError as error:
                self._warn(
                    f"blocks of the KV cache cannot be written to {self._disk.path}: {error.strerror}. They are kept "
                    "in memory alone; free some space, or give less --kv-offload-disk or another --kv-offload-folder"
                )
                return index
        return len(copies)
