"""`WorkerDevice`: the device that a worker computes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.offload.protocol import BlockBytes
from atom_core.worker.ranks.protocol import MeetingRanks, WorkerRanks
from atom_kernels.protocols import CacheLayout, Caches, Peers


class FreeMemory(NamedTuple):
    """Memory of a rank that is left beside a model.

    Attributes:
        num_bytes: what the KV cache may have; see `size_cache`.
        weights_per_token: about how many weights each token is multiplied by; 0 where nothing asks for it.
        choices: a line for each value that was chosen for the user.
    """

    num_bytes: int
    weights_per_token: int = 0
    choices: tuple[str, ...] = ()


class WorkerDevice(Protocol):
    """One kind of device. Every rank of an engine has the same kind."""

    @property
    def collectives(self) -> str:
        """The libraries by which its ranks exchange, as torch.distributed names them."""
        ...

    @property
    def launches(self) -> bool:
        """Whether it computes by itself what the worker launches."""
        ...

    def take(self, number: int) -> None:
        """Let this process compute on the device of that number, which is its own."""
        ...

    def share_memory(self, ranks: MeetingRanks) -> Peers:
        """Memory that ranks share beside their collectives; either all of them get it, or none."""
        ...

    def begin(self, num_threads: int) -> None:
        """Set up the thread that runs the worker."""
        ...

    def begin_step(self) -> None:
        """Called before a step's layers run."""
        ...

    def fetch(self, results: torch.Tensor) -> Callable[[], list[Any]]:
        """What brings the host what the device computed, as lists of numbers; only who calls it waits for them.

        They may be overwritten by what is launched after this call. What the device failed with is raised there.
        """
        ...

    def describe(self) -> str:
        """What code compiled for it depends on."""
        ...

    def free_memory(
        self, config: EngineConfig, model: EngineModel, pages: CachePages, *, ranks: WorkerRanks
    ) -> FreeMemory:
        """Measure what is left for the cache once the weights of `model` are loaded."""
        ...

    def allocate(self, layout: CacheLayout, count: int) -> Caches:
        """Zeroed tensors ``[count, *shape]``, one for each of the layout's."""
        ...

    def memory_for_offload(self, num_bytes: int) -> int:
        """Bytes of the memory that `free_memory` counts, where so many are kept of blocks that leave the cache."""
        ...

    def make_block_bytes(self, tensors: Sequence[torch.Tensor], num_places: int) -> BlockBytes:
        """The cache's tensors ``[num_blocks, ...]`` as pages, with so many places in memory of the host beside it."""
        ...

    def make_capture(self) -> Capture | None:
        """What makes graphs of steps; None where every step is computed as it comes."""
        ...
