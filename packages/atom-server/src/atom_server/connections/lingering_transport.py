"""`LingeringTransport`: a connection that ends only when its client could read the last answer, and always ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from atom_server.connections.departure import Departure
from atom_server.connections.limits import ConnectionLimits


class LingeringTransport(asyncio.Transport):
    """Wraps the event loop's transport; closes it so that what was written last arrives.

    If a socket is closed while its client still sends, the client gets a reset, which may overtake the last answer. So
    `close` ends only the writing if `is_sending` says that more will come. What comes is thrown away, up to a limit of
    bytes and time. A client that reads nothing is cut off.

    Args:
        departure: watches the socket while it is not read.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: ConnectionLimits,
        is_sending: Callable[[], bool],
        departure: Departure,
    ) -> None:
        super().__init__()
        self.is_lingering = False
        self.write = transport.write  # type: ignore[method-assign]  # for each chunk of a stream: no detour
        self._transport = transport
        self._limits = limits
        self._is_sending = is_sending
        self._departure = departure
        self._num_discarded = 0
        self._num_unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close once everything has been sent."""
        if self.is_closing():
            return
        self._departure.stop()
        if self._is_sending():
            self.is_lingering = True
            self.write = _ignore  # type: ignore[method-assign]
            self._transport.resume_reading()
            if self._transport.can_write_eof():  # TLS has no end of one side: the answer's length tells it
                self._transport.write_eof()
            self.watch(self._limits.linger_s)
        else:
            self._transport.close()
            self.watch(self._limits.request_s)

    def close_soon(self) -> None:
        """Close without waiting for what the client still sends."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def discard(self, num_bytes: int) -> None:
        """Throw away what came while lingering."""
        self._num_discarded += num_bytes
        if self._num_discarded > self._limits.linger_bytes:
            self.abort()

    def watch(self, seconds: float) -> None:
        """Abort the connection if nothing is sent for `seconds`: the client takes nothing, or all has been sent."""
        self.stop_watching()
        self._num_unsent = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_progress, seconds)

    def stop_watching(self) -> None:
        """End `watch`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_progress(self, seconds: float) -> None:
        if 0 < self._transport.get_write_buffer_size() < self._num_unsent:
            self.watch(seconds)
        else:
            self.abort()

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._transport.pause_reading()
            self._departure.watch()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._departure.stop()
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def _ignore(data: bytes | bytearray | memoryview) -> None:
    """What is written after the end."""
