"""`CudaCapture`: makes CUDA graphs of work that is launched, all over one pool of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from atom_core.garbage import no_collection
from atom_core.worker.graphs.piecewise_capture import Parts, Replay

Work = Callable[[], tuple[torch.Tensor, ...]]
"""Launches kernels, and returns what they write. It reads the same memory at each call, and never waits."""


class Captured(Protocol):
    """Captured work.

    Attributes:
        outputs: what the work wrote last. Valid until work is replayed that was captured after `share`.
    """

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]: ...

    def replay(self) -> None:
        """Launch the work, over what its inputs hold now."""
        ...

    def share(self) -> None:
        """Let work that is captured from now on use the memory of the outputs."""
        ...


class Capture(Protocol):
    """Runs work once, then captures it."""

    def __call__(self, work: Work, *, in_pieces: bool = False) -> Captured:
        """Capture `work` in one graph, or as `in_pieces` asks, in one for each piece between attention layers.

        Attention between pieces is called by each replay; work and replays must have a forward context then.
        """
        ...


class CudaCapture:
    """Captures on a stream of its own, so that memory is shared between graphs; only one of them may run at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Work, *, in_pieces: bool = False) -> CapturedGraphs:
        work()  # compiles kernels and makes workspaces, which cannot be done in a capture
        torch.cuda.synchronize()
        parts = Parts(self._begin, unowned)
        # A closed engine may still have graphs, and destroying one makes a capture fail.
        with torch.cuda.stream(self._stream), no_collection():
            outputs = parts.record(work, in_pieces=in_pieces)
        return CapturedGraphs(parts.replays, outputs)

    def _begin(self) -> Callable[[], Replay]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def end() -> Replay:
            graph.capture_end()
            return graph.replay

        return end


class CapturedGraphs:
    """CUDA graphs, what is called between them, and the tensors that they write; see `Captured`."""

    def __init__(self, replays: list[Replay], outputs: tuple[torch.Tensor, ...]) -> None:
        self._replays, self.outputs = replays, outputs

    def replay(self) -> None:
        for replay in self._replays:
            replay()

    def share(self) -> None:
        self.outputs = tuple(map(unowned, self.outputs))


class CaptureCost:
    """What captures took: seconds, and bytes of the device's memory."""

    def __init__(self) -> None:
        self.seconds, self.bytes = 0.0, 0

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count what is captured within."""
        started, free = time.perf_counter(), _free_memory()
        yield
        self.seconds += time.perf_counter() - started
        self.bytes += free - _free_memory()

    def describe(self) -> str:
        """For a line in the log."""
        return f"{self.seconds:.1f} s, {self.bytes / (1 << 20):.0f} MiB"


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without a hold on its memory: graphs read and write there whoever owns it."""
    memory = torch.as_tensor(_Memory(tensor.untyped_storage()), device=tensor.device)
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class _Memory:
    """The bytes of a storage, as an array that does not own them."""

    def __init__(self, storage: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (storage.nbytes(),), "typestr": "|u1", "data": (storage.data_ptr(), False), "strides": None,
            "version": 3,
        }  # fmt: skip


def _free_memory() -> int:
    """Free bytes of the device; 0 without one."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
