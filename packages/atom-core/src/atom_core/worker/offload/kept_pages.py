"""`KeptPages`: carries blocks between the cache, the host's memory and a disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from atom_core.messages import BlockCopy, Transfer
from atom_core.seldom import SeldomWarning
from atom_core.worker.offload.disk import DiskPages
from atom_core.worker.offload.places import HostPlaces

logger = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20


class KeptPages:
    """The `BlockCarrier` of blocks that left the cache: a thread for loads, and one for writes, which nobody waits for.

    Args:
        places: the places in memory.
        disk: the places behind those in memory; None without.
    """

    kinds = ("load", "write")

    def __init__(self, places: HostPlaces, disk: DiskPages | None) -> None:
        self._places, self._disk = places, disk
        self._warn = SeldomWarning(logger)
        self._chunk = max(CHUNK_BYTES // places.page_bytes, 1)
        self._threads = {kind: ThreadPoolExecutor(1, thread_name_prefix=f"blocks-{kind}") for kind in self.kinds}

    def begin(self, transfer: Transfer) -> Future[int]:
        return self._threads[transfer.kind].submit(self._move, transfer)

    def look(self) -> None:
        """Nothing ends because of the time."""

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        if self._disk is not None:
            self._disk.close()

    def _move(self, transfer: Transfer) -> int:
        """Copy in order; how many copies are right."""
        num_done = 0
        try:
            self._places.wait_for_saves()
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
        pages = np.empty((len(copies), self._places.page_bytes), np.uint8)
        num_right = next((i for i, copy in enumerate(copies) if not self._read(copy.source, pages[i])), len(copies))
        self._places.load(pages[:num_right], [copy.target for copy in copies[:num_right]])
        return num_right

    def _read(self, place: int, into: np.ndarray) -> bool:
        if place < len(self._places):
            into[:] = self._places.page(place)
            return self._places.is_saved(place)
        is_right = self._disk is not None and self._disk.read(place - len(self._places), into)
        if not is_right:
            logger.warning("a block of the KV cache is damaged on the disk; its tokens are computed again")
        return is_right

    def _write(self, copies: Sequence[BlockCopy]) -> int:
        for index, copy in enumerate(copies):
            if self._disk is None or not self._places.is_saved(copy.source):
                return index
            try:
                self._disk.write(copy.target - len(self._places), self._places.page(copy.source))
            except OSError as error:
                self._warn(
                    f"blocks of the KV cache cannot be written to {self._disk.path}: {error.strerror}. They are kept "
                    "in memory alone; free some space, or give less --kv-offload-disk or another --kv-offload-folder"
                )
                return index
        return len(copies)
