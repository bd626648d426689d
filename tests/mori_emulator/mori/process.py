"""What a process is in the emulator: a thread, which a test has made a rank of a group of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Process(threading.local):
    """Attributes:
    rank, size, name: the thread's place among others, and what torch.distributed would call these.
    exchange: ``(rank, anything) -> what all ranks gave``, which waits for them.
    has_joined: it has joined MORI's memory.
    """

    rank = -1
    size = 0
    name = ""
    exchange: Callable[[int, Any], list[Any]] | None = None
    has_joined = False

    def all_give(self, given: Any) -> list[Any]:
        """What every rank gives."""
        if self.exchange is None:
            raise RuntimeError("this thread is no rank")
        return self.exchange(self.rank, given)


here = Process()
