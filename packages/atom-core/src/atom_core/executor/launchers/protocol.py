"""`Launcher`: places the ranks of an engine and starts a process for each. Torch-free."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from atom_core.worker.ranks.meeting import Place, StoreFile


class RanksWanted(NamedTuple):
    """The ranks that an engine asks for.

    Attributes:
        size: how many there are.
        device: "cpu" or "cuda".
        num_threads: threads of each rank.
        first_device: the number of rank 0's device, where all are on this host.
    """

    size: int
    device: str
    num_threads: int
    first_device: int = 0


class StartedRank(Protocol):
    """A rank's process, from the side of the one that started it."""

    @property
    def place(self) -> Place:
        """Where it runs."""
        ...

    @property
    def end(self) -> socket.socket:
        """Our end of the connection to it, which belongs to whoever asks for it."""
        ...

    @property
    def ended(self) -> Future[str]:
        """How it ended, such as "was ended by SIGKILL", once it has."""
        ...

    @property
    def pid(self) -> int | None:
        """The id of its process, where that is on this host."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped its process, as far as this host can tell."""
        ...

    def kill(self) -> None:
        """End its process at once; `ended` follows."""
        ...


class Launcher(Protocol):
    """Starts the ranks of one engine, once."""

    def start(self, wanted: RanksWanted) -> tuple[Sequence[StartedRank], StoreFile | None]:
        """Start a process for each rank: by rank, with the file where they find each other; None without such a file.

        Raises:
            OSError, EngineStartError: they cannot be started; none is left.
        """
        ...

    def close(self) -> None:
        """Give back what was taken to start them, once all have ended."""
        ...
