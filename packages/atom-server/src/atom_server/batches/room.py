"""`Room`: how many bytes the files of all keys take, and how many are left for each."""

from __future__ import annotations

import threading
from collections import Counter

from atom_server.errors import APIError


class Room:
    """Bytes of the files of a server. Several threads may take some.

    Args:
        most_bytes: what all files may take together.
        shared: there are several keys, of which each leaves to others as much as it takes.
    """

    def __init__(self, most_bytes: int, *, shared: bool) -> None:
        self._most_bytes = most_bytes
        self._shared = shared
        self._taken: Counter[str] = Counter()
        self._counting = threading.Lock()

    def take(self, owner: str, num_bytes: int, *, is_there: bool = False) -> None:
        """Count bytes that are to be written, or that lay there before this server began.

        Raises:
            APIError: 413; there is no room for them.
        """
        with self._counting:
            free = self._most_bytes - self._taken.total()
            own = self._taken[owner] if self._shared else 0
            if not is_there and own + num_bytes > free:
                message = f"the files of batches would take more than --batch-folder-mb allows ({self._most_bytes}"
                if own:
                    message += " bytes, of which each key leaves as many free as it takes"
                raise APIError(413, f"{message}): delete files that are not needed any more", code="no_room")
            self._taken[owner] += num_bytes

    def give_back(self, owner: str, num_bytes: int) -> None:
        """Bytes were removed, or not written after all."""
        with self._counting:
            self._taken[owner] -= num_bytes
