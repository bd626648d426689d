"""`HostedRank`: a rank that `host_rank` runs on another host, as its engine sees it. Torch-free."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from atom_core.executor.launchers.doorway import Doorway
from atom_core.worker.ranks.meeting import Place

_LONGEST_WORDS = 4096


class HostedRank:
    """A rank of another host. A thread of ours belongs to it.

    Args:
        place: where it runs.
        end: our end of the connection for its steps.
        lifeline: our end of the one by which its host tells how it ended.

    Attributes:
        ended: how it ended, once it has.
        pid: None, since it is another host's.
        is_stopped: False, since nobody here can tell.
    """

    pid, is_stopped = None, False

    def __init__(self, place: Place, end: socket.socket, lifeline: socket.socket) -> None:
        self.place, self.end = place, end
        self.ended: Future[str] = Future()
        self._lifeline = lifeline
        threading.Thread(target=self._listen, name="rank-lifeline", daemon=True).start()

    def kill(self) -> None:
        """Have its host end it; whoever sends to it is not kept waiting."""
        for end, way in ((self.end, socket.SHUT_RDWR), (self._lifeline, socket.SHUT_WR)):
            with contextlib.suppress(OSError):
                end.shutdown(way)

    def _listen(self) -> None:
        words = b""
        with self._lifeline:
            try:
                while len(words) < _LONGEST_WORDS and (part := self._lifeline.recv(_LONGEST_WORDS)):
                    words += part
            except ConnectionResetError:
                pass
            except OSError as error:
                words = b"is lost: its node does not answer (" + str(error.strerror).encode() + b")"
        self.ended.set_result(words.decode(errors="replace") or "is lost: the process that started it is gone")


def receive_ranks(door: Doorway, place_of: Callable[[int, str], Place], seconds: float) -> list[HostedRank]:
    """Wait until the hosts of all ranks have come; none is left where one does not.

    Args:
        door: where they come to; it is closed.
        place_of: tells where a rank is by its number, and by the address from which it came.
        seconds: how long each may take.

    Raises:
        EngineStartError: one did not come.
    """
    ranks: list[HostedRank] = []
    try:
        for rank in door.ranks:
            end, lifeline = door.wait_for(rank, seconds)
            ranks.append(HostedRank(place_of(rank, lifeline.getpeername()[0]), end, lifeline))
    except BaseException:
        for each in ranks:
            each.kill()
            each.end.close()
        raise
    finally:
        door.close()
    return ranks
