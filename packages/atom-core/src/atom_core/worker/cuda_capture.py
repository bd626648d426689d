"""`CudaCapture`: makes CUDA graphs of work that is launched, all over one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], torch.Tensor]
"""Launches kernels, and returns what they write, contiguous. It reads the same memory at each call, and never waits."""


class Captured(Protocol):
    """Captured work.

    Attributes:
        output: what the work wrote last. Valid until work is replayed that was captured after `share`.
    """

    @property
    def output(self) -> torch.Tensor: ...

    def replay(self) -> None:
        """Launch the work, over what its inputs hold now."""
        ...

    def share(self) -> None:
        """Let work that is captured from now on use the memory of the output."""
        ...


Capture = Callable[[Work], Captured]
"""Runs work once, then captures it."""


class CudaCapture:
    """Captures on a stream of its own, so that memory is shared between graphs; only one of them may run at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Work) -> CapturedGraph:
        work()  # compiles kernels and makes workspaces, which cannot be done in a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = work()
            finally:
                graph.capture_end()
        return CapturedGraph(graph, output)


class CapturedGraph:
    """A CUDA graph and the tensor that it writes; see `Captured`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor) -> None:
        self.output = output
        self.replay: Callable[[], None] = graph.replay

    def share(self) -> None:
        self.output = torch.as_tensor(_Memory(self.output), device=self.output.device)


class _Memory:
    """The memory of a contiguous tensor, without a hold on it: the graph writes there whoever owns it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            raise ValueError(f"captured work returned a tensor {tuple(tensor.shape)} of strides {tensor.stride()}")
        kind = {torch.float32: "<f4", torch.int64: "<i8"}[tensor.dtype]
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape), "typestr": kind, "data": (tensor.data_ptr(), False), "strides": None,
            "version": 3,
        }  # fmt: skip


def free_memory() -> int:
    """Bytes that nobody has taken on the device; 0 without one."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
