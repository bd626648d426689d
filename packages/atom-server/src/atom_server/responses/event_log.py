"""`EventLog`: the events of a stream, kept so that it can be read again, from the middle and while it still grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class EventLog:
    """Grows by `append` until `close`.

    Attributes:
        size: bytes in it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._events: list[bytes] = []
        self._is_closed = False
        self._changed = asyncio.Event()

    def append(self, data: bytes) -> None:
        """Add one or more whole events."""
        events = [event + b"\n\n" for event in data.split(b"\n\n") if event]
        self._events += events
        self.size += len(data)
        self._wake()

    def close(self) -> None:
        """No more will come."""
        self._is_closed = True
        self._wake()

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The events with numbers above `after`, until the log is closed."""
        position = after + 1
        while True:
            changed = self._changed
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._is_closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
