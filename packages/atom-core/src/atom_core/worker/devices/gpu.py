"""`Gpu`: a worker that launches its work on an NVIDIA or AMD GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache.device_memory import count_weights_per_token, measure_memory
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.devices.pinned import Results
from atom_core.worker.devices.protocol import FreeMemory
from atom_core.worker.graphs.cuda_capture import CudaCapture
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.offload.gpu_bytes import NUM_BUFFERS, STAGING_BYTES, GpuBytes
from atom_core.worker.ranks.peers import share_memory
from atom_core.worker.ranks.protocol import MeetingRanks, WorkerRanks
from atom_kernels.protocols import CacheLayout, Caches, Peers


class Gpu:
    """See `WorkerDevice`. What hosts agree on goes by gloo."""

    collectives, launches = "cpu:gloo,cuda:nccl", True

    def __init__(self) -> None:
        self._results = Results(torch.device("cuda"))

    def take(self, number: int) -> None:
        """The GPU of that number, of those that this process may use."""
        torch.cuda.set_device(number)

    def share_memory(self, ranks: MeetingRanks) -> Peers:
        """Where GPUs reach each other, and there are kernels for so many."""
        return share_memory(ranks)

    def begin(self, num_threads: int) -> None:
        """The host computes nothing that would take several threads."""

    def begin_step(self) -> None:
        """Nothing."""

    def fetch(self, results: torch.Tensor) -> Callable[[], list[Any]]:
        """A copy that runs behind what was launched, and next to what is launched then."""
        return self._results.fetch(results)

    def describe(self) -> str:
        """Its name."""
        return torch.cuda.get_device_name()

    def free_memory(
        self, config: EngineConfig, model: EngineModel, pages: CachePages, *, ranks: WorkerRanks
    ) -> FreeMemory:
        """Run the largest step once, and measure what it leaves."""
        # Agreed, since it decides which steps are captured, and so to how many tokens they are padded.
        weights_per_token = ranks.smallest(count_weights_per_token(config, model))
        measured = measure_memory(config, model, pages, weights_per_token, device=self)
        return FreeMemory(measured.for_cache, weights_per_token, (measured.describe(),))

    def allocate(self, layout: CacheLayout, count: int) -> Caches:
        return layout.allocate(count, "cuda")

    def memory_for_offload(self, num_bytes: int) -> int:
        """The buffers that blocks go through."""
        return NUM_BUFFERS * STAGING_BYTES

    def make_block_bytes(self, tensors: Sequence[torch.Tensor], num_places: int) -> GpuBytes:
        return GpuBytes(tensors, num_places)

    def make_capture(self) -> CudaCapture:
        return CudaCapture()
