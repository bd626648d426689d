"""`Cpu`: a worker that computes where it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from atom_core.config.sections import EngineConfig
from atom_core.host_memory import available_memory
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.devices.protocol import FreeMemory
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.offload.host_bytes import HostBytes
from atom_core.worker.ranks.host_memory import share_memory
from atom_core.worker.ranks.protocol import MeetingRanks, WorkerRanks
from atom_kernels.host_threads.waiting import adapt_waiting
from atom_kernels.protocols import CacheLayout, Caches, Peers


class Cpu:
    """See `WorkerDevice`."""

    collectives, launches = "gloo", False

    def take(self, number: int) -> None:
        """All ranks share the host."""

    def share_memory(self, ranks: MeetingRanks) -> Peers:
        """Memory of the host that all of them have mapped."""
        return share_memory(ranks)

    def begin(self, num_threads: int) -> None:
        """OpenMP counts threads for each thread that starts work, so this must happen in the worker's own."""
        torch.set_num_threads(num_threads)

    def begin_step(self) -> None:
        """Let threads wait as suits how busy the cores are."""
        adapt_waiting()

    def fetch(self, results: torch.Tensor) -> Callable[[], list[Any]]:
        """They are there at once."""
        found = results.tolist()
        return lambda: found

    def describe(self) -> str:
        """Its instruction set."""
        return torch.backends.cpu.get_cpu_capability()

    def free_memory(
        self, config: EngineConfig, model: EngineModel, pages: CachePages, *, ranks: WorkerRanks
    ) -> FreeMemory:
        """A share of the host's free memory, shared by all ranks; as much as one likes where none is known."""
        free = available_memory()
        return FreeMemory(sys.maxsize if free is None else free // (ranks.size * config.parallel.data_parallel_size))

    def allocate(self, layout: CacheLayout, count: int) -> Caches:
        """Pages of memory cost nothing before they are first written."""
        return tuple(_untouched((count, *tensor.shape), tensor.dtype) for tensor in layout.tensors)

    def memory_for_offload(self, num_bytes: int) -> int:
        """All of it: there is one memory."""
        return num_bytes

    def make_block_bytes(self, tensors: Sequence[torch.Tensor], num_places: int) -> HostBytes:
        return HostBytes(tensors, num_places)

    def make_capture(self) -> None:
        """Nothing is captured."""


def _untouched(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    item = getattr(torch, dtype)
    count = int(np.prod(shape)) * item.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(item).view(shape)
