"""Loads of kept blocks do not wait for writes, whose thread may be held up by a disk."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import torch

from atom_core.messages import BlockCopy, Transfer
from atom_core.worker.offload.disk import DiskPages
from atom_core.worker.offload.host_bytes import HostBytes
from atom_core.worker.offload.kept_pages import KeptPages
from atom_core.worker.offload.places import HostPlaces


class HeldBackDisk(DiskPages):
    """Writes nothing until it may."""

    may_write = threading.Event()

    def write(self, page: int, data: np.ndarray) -> None:
        assert self.may_write.wait(30)
        super().write(page, data)


def test_a_block_is_loaded_from_memory_while_the_disk_holds_back_its_write(tmp_path: Path):
    cache = torch.arange(8.0).view(4, 2)
    places = HostPlaces(HostBytes([cache], 4))
    disk = HeldBackDisk(tmp_path, "rank", places.page_bytes)
    pages = KeptPages(places, disk)
    places.save([BlockCopy(1, 0)])
    write = pages.begin(Transfer(1, "write", (BlockCopy(0, 4),)))
    assert pages.begin(Transfer(2, "load", (BlockCopy(0, 3),))).result(timeout=30) == 1
    assert cache[3].tolist() == [2.0, 3.0]
    assert not write.done()
    disk.may_write.set()
    assert write.result(timeout=30) == 1
    assert pages.begin(Transfer(3, "load", (BlockCopy(4, 2),))).result(timeout=30) == 1
    assert cache[2].tolist() == [2.0, 3.0]
    pages.close()
