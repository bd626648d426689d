"""Ranks that torchrun started: its process 0 is the front and has rank 0, the others run a rank each. Torch-free."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from atom_core import settings
from atom_core.config.engine_args import EngineArgs
from atom_core.executor.launchers.connections import address_towards, interface_of
from atom_core.executor.launchers.doorway import Doorway
from atom_core.executor.launchers.handshake import make_secret
from atom_core.executor.launchers.hosted_rank import receive_ranks
from atom_core.executor.launchers.hosting import host_rank
from atom_core.executor.launchers.invitation import (
    Invitation,
    Inviter,
    ask_for_invitation,
    invitation_of_environment,
)
from atom_core.executor.launchers.protocol import RanksWanted, StartedRank
from atom_core.executor.launchers.this_host import WORKER, SpawnedRank
from atom_core.settings import Torchrun
from atom_core.worker.ranks.meeting import Place

# A front reads the model's description before its engine listens, and nodes do not start at once.
MEET_SECONDS = 300.0
_TRY_SECONDS = 0.2
LOOPBACK = "127.0.0.1"


class TorchrunLauncher:
    """Starts rank 0 on this host, and waits for torchrun's other processes, which start the others.

    Args:
        process: what torchrun said to this one.
        command: runs a rank.
    """

    def __init__(self, process: Torchrun, command: Sequence[str] = WORKER) -> None:
        self._process, self._command = process, command

    def start(self, wanted: RanksWanted) -> tuple[Sequence[StartedRank], None]:
        with self._door(wanted.size) as door:
            host = door.address[0]
            environment = settings.rank_environment(wanted.num_threads, interface_of(host) or "lo")
            first = SpawnedRank.start(self._command, Place(host, 0), inherits=(), environment=environment)
            try:
                others = receive_ranks(door, self._place_of, MEET_SECONDS)
            except BaseException:
                first.kill()
                first.end.close()
                raise
        return [first, *others], None

    def _place_of(self, rank: int, address: str) -> Place:
        return Place(address, rank % self._process.local_size)

    def close(self) -> None:
        """Torchrun's processes end with their ranks."""

    @contextmanager
    def _door(self, size: int) -> Iterator[Doorway]:
        ranks = range(1, size)
        if self._process.is_on_one_host:
            door = Doorway(LOOPBACK, ranks, make_secret())
            with contextlib.closing(Inviter(self._process, Invitation(*door.address, door.secret))):
                yield door
        else:
            invitation = invitation_of_environment(self._process)
            yield Doorway(invitation.host, ranks, invitation.secret, port=invitation.port)


def run_torchrun_rank(process: Torchrun, args: EngineArgs, command: Sequence[str] = WORKER) -> int:
    """Run the rank of a process of torchrun other than the first, until its engine ends it; its exit code.

    Raises:
        ConfigError, EngineStartError, OSError: there is no engine to come to.
    """
    if process.is_on_one_host:
        invitation, own = ask_for_invitation(process, MEET_SECONDS), LOOPBACK
    else:
        invitation = invitation_of_environment(process)
        own = address_towards(invitation.host, invitation.port)
    num_threads = args.num_threads or settings.omp_num_threads() or 1
    environment = settings.rank_environment(num_threads, interface_of(own) or "lo")
    deadline = time.monotonic() + MEET_SECONDS
    while True:
        try:
            words = host_rank(
                (invitation.host, invitation.port),
                invitation.secret,
                process.rank,
                environment=environment,
                command=command,
                on_start=_leave_signals_to_the_front,
            )
        except (ConnectionRefusedError, TimeoutError):  # it has yet to listen
            if time.monotonic() > deadline:
                raise
            time.sleep(_TRY_SECONDS)
        else:
            return 0 if words == "ended with code 0" else 1


def _leave_signals_to_the_front() -> None:
    """torchrun sends them to all of its processes, of which the first lets requests end, and then all ranks."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
