"""`CudaCapture`: makes CUDA graphs of work that is launched, all over one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]


class Replayable(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Launch it, over what its tensors hold now."""
        ...


Capture = Callable[[Work], Replayable]
"""Runs work once, then captures it. It must read and write the same memory at each call, and never wait."""


class CudaCapture:
    """Captures on a stream of its own, so that memory is shared between graphs; only one of them may run at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Work) -> Replayable:
        work()  # compiles kernels and makes workspaces, which cannot be done in a capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph


def free_memory() -> int:
    """Bytes that nobody has taken on the device; 0 without one."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
