"""`Doorway`: where the hosts of an engine's ranks come to it from other processes and nodes. Torch-free."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable

from atom_core.errors import EngineStartError
from atom_core.executor.launchers.connections import listen, set_up
from atom_core.executor.launchers.handshake import NotProvedError, Purpose, prove_as_engine

logger = logging.getLogger(__name__)

# Connections that have yet to prove themselves, at once; further ones are closed unheard.
MOST_UNPROVED = 64


class Doorway:
    """Lets in who knows the secret: two connections for each rank. Others are told nothing, and keep nobody waiting.

    Args:
        address: the address of this host at which to listen.
        ranks: the numbers of those that are expected.
        secret: what both ends must know.
        port: where to listen; 0 takes a free one.

    Attributes:
        secret: what both ends must know.
        address: where it listens.

    Raises:
        ValueError, OSError: nobody can listen there.
    """

    def __init__(self, address: str, ranks: Iterable[int], secret: bytes, *, port: int = 0) -> None:
        self.secret = secret
        self._changed = threading.Condition()
        self._came: dict[int, dict[Purpose, socket.socket]] = {rank: {} for rank in ranks}
        self._lost: dict[int, str] = {}
        self._unproved: set[socket.socket] = set()
        self._is_closed = False
        self._listener = listen(address, port)
        self.address: tuple[str, int] = (address, self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="ranks-door", daemon=True).start()

    def wait_for(self, rank: int, seconds: float) -> tuple[socket.socket, socket.socket]:
        """The connections of a rank: that of its steps, and its lifeline.

        Args:
            rank: its number.
            seconds: how long they may take.

        Raises:
            EngineStartError: they did not come.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(came := self._came[rank]) < len(Purpose):
                if self._lost:
                    first = min(self._lost)
                    raise EngineStartError(f"rank {first} {self._lost[first]}")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise EngineStartError(
                        f"rank {rank} did not come to {self.address[0]}:{self.address[1]} within {seconds:.0f} s: can "
                        "its node reach that address?"
                    )
            del self._came[rank]
        return came[Purpose.STEPS], came[Purpose.LIFELINE]

    def expect_no_more(self, rank: int, why: str) -> None:
        """Have who waits for ranks learn why one will not come."""
        with self._changed:
            self._lost[rank] = why
            self._changed.notify_all()

    @property
    def ranks(self) -> list[int]:
        """The ranks that are still waited for."""
        with self._changed:
            return sorted(self._came)

    @property
    def is_closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._is_closed

    def close(self) -> None:
        """Let nobody in any more, and close what nobody has waited for."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._changed:
            self._is_closed = True
            ends = [*self._unproved, *(end for came in self._came.values() for end in came.values())]
            self._came.clear()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                end, (host, port, *_) = self._listener.accept()
            except OSError:  # it was closed
                return
            with self._changed:
                is_welcome = len(self._unproved) < MOST_UNPROVED and not self._is_closed
                if is_welcome:
                    self._unproved.add(end)
            if is_welcome:
                threading.Thread(target=self._let_in, args=(end, f"{host}:{port}"), daemon=True).start()
            else:
                end.close()

    def _let_in(self, end: socket.socket, where: str) -> None:
        try:
            rank, purpose = prove_as_engine(end, self.secret)
            set_up(end, purpose)
            with self._changed:
                came = self._came.get(rank)
                if came is None or purpose in came:
                    raise NotProvedError(f"it says that it is rank {rank}, which is not expected")
                came[purpose] = end
                self._changed.notify_all()
        except OSError as error:
            if not self._is_closed:
                logger.warning("a connection from %s was not let in: %s", where, error)
            end.close()
        finally:
            with self._changed:
                self._unproved.discard(end)
