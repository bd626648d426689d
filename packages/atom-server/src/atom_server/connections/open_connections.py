"""`OpenConnections`: who is connected, how many may be, and who makes room for the next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from atom_core.seldom import SeldomWarning

if TYPE_CHECKING:
    from atom_server.connections.connection import Connection

logger = logging.getLogger(__name__)


class OpenConnections:
    """The connections of one server.

    A connection *waits* while it has sent no whole request, and *works* while an answer is due. If there are too many,
    the one that has waited longest is closed: clients that hold connections and ask for nothing keep nobody out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # the longest first
        self._warn = SeldomWarning(logger)

    def add(self, connection: Connection) -> bool:
        """Take in a connection, which waits. False if there is no room and all others work."""
        is_full = len(self._all) >= self._most
        while len(self._all) >= self._most and self._waiting:
            longest = next(iter(self._waiting))
            self.discard(longest)
            longest.abort()
        has_room = len(self._all) < self._most
        if is_full:
            done = "closed the one that waited longest" if has_room else "refused another, since all are being answered"
            self._warn(f"there are {self._most} connections, as many as may be (--max-connections): {done}")
        self._all.add(connection)
        self._waiting[connection] = None
        return has_room

    def discard(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._all.discard(connection)
        self._waiting.pop(connection, None)

    def set_works(self, connection: Connection, *, works: bool) -> None:
        """Note that a connection begins to work, or to wait."""
        if works:
            self._waiting.pop(connection, None)
        elif connection in self._all:
            self._waiting.setdefault(connection)
