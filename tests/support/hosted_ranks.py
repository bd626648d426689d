"""`LoopbackLauncher`: ranks that come to their engine over TCP, as from other nodes, each from a thread of ours."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from atom_core import settings
from atom_core.executor.launchers.doorway import Doorway
from atom_core.executor.launchers.handshake import make_secret
from atom_core.executor.launchers.hosted_rank import HostedRank, receive_ranks
from atom_core.executor.launchers.hosting import host_rank
from atom_core.executor.launchers.protocol import RanksWanted
from atom_core.executor.launchers.this_host import WORKER
from atom_core.worker.ranks.meeting import Place

LOOPBACK = "127.0.0.1"


class LoopbackLauncher:
    """See `Launcher`.

    Attributes:
        ends: what the host of each rank said of its end, once it has ended.
    """

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = command
        self._hosts: list[threading.Thread] = []
        self.ends: dict[int, str] = {}

    def start(self, wanted: RanksWanted) -> tuple[list[HostedRank], None]:
        secret = make_secret()
        door = Doorway(LOOPBACK, range(wanted.size), secret)
        environment = settings.rank_environment(wanted.num_threads)

        def host(rank: int) -> None:
            with contextlib.suppress(OSError):  # the engine hears of it
                self.ends[rank] = host_rank(door.address, secret, rank, environment=environment, command=self._command)

        self._hosts = [threading.Thread(target=host, args=(rank,), daemon=True) for rank in range(wanted.size)]
        for each in self._hosts:
            each.start()
        return receive_ranks(door, lambda rank, address: Place(address, rank), 20.0), None

    def close(self) -> None:
        for each in self._hosts:
            each.join(20.0)
