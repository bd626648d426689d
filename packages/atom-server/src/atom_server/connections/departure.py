"""`Departure`: notices that a client has left where the event loop does not read its socket."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

# The second look notices that a client has left: a reset has answered what the first look wrote.
_LOOK_S = 0.4
_GONE = select.POLLERR | select.POLLHUP


class Departure:
    """Asks, again and again, whether the client at the other end of a socket is still there.

    The event loop does not read while requests sent ahead wait, and it hears nothing more of a client that has ended
    its own side. Such a client may have closed the connection, or may still read. Only writing to it tells which: a
    closed connection answers with a reset.

    Args:
        probe: writes what a client ignores.
        on_gone: called once the client is known to be gone.
    """

    def __init__(self, transport: asyncio.Transport, *, probe: Callable[[], None], on_gone: Callable[[], None]) -> None:
        self._socket = transport.get_extra_info("socket")
        self._probe = probe
        self._on_gone = on_gone
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Ask from now on, until `stop`."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def stop(self) -> None:
        """The event loop reads again, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        if any(events & _GONE for _, events in poll.poll(0)):
            self._on_gone()
        else:
            self.watch()
            self._probe()
