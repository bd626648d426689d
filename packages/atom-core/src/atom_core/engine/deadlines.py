"""`Deadlines`: requests that have taken longer than any may."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from atom_core.messages import EngineRequest


class Deadlines:
    """Every request may take equally long, so they expire in the order in which they came.

    Args:
        seconds: how long it may take from its arrival; None sets no limit.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._open: deque[tuple[float, str]] = deque()

    def add(self, request: EngineRequest) -> None:
        """A request came."""
        if self.seconds is not None:
            self._open.append((request.arrival_time + self.seconds, request.request_id))

    def take_expired(self) -> list[str]:
        """The ids of those whose time is over, each told once; some may have ended long ago."""
        expired: list[str] = []
        while self._open and self._open[0][0] <= self._clock():
            expired.append(self._open.popleft()[1])
        return expired
