"""`RankProcesses`: the processes of all ranks, started, watched and ended as one. Torch-free."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from atom_core.errors import EngineStartError
from atom_core.executor.launchers.protocol import Launcher, RanksWanted
from atom_core.executor.launchers.this_host import HostLauncher
from atom_core.executor.processes.rank_link import RankLink
from atom_core.executor.processes.wire import Join, KeepStore, Leave, Sample, StoreKept, ToRank, encode
from atom_core.failure import Failure
from atom_core.worker.ranks.meeting import Engines, Meeting, StoreAddress, StoreFile

# Ranks that lose another one may say so before its own end is seen: so long is waited for the first cause.
GATHER_SECONDS = 0.3
# A node that is lost is noticed so late, and ranks that exchange with it may notice it before.
LOST_NODE_SECONDS = 4.2
LEAVE_SECONDS = 5.0


class RankProcesses:
    """The ranks of an engine. One that ends takes the others along.

    Args:
        size: how many there are.
        device: "cpu" or "cuda".
        num_threads: threads of each rank.
        first_device: the number of rank 0's device, where all are on this host.
        num_stages: the stages of which each has an equal number of them.
        launcher: places and starts them; unset starts them on this host.
        engines: the engines whose ranks meet; unset is this one alone.
        meeting_folder: where the ranks of several engines do so.

    Raises:
        OSError, EngineStartError: they cannot be started, or one ended before all had met.
    """

    def __init__(
        self,
        size: int,
        *,
        device: str,
        num_threads: int,
        first_device: int = 0,
        num_stages: int = 1,
        launcher: Launcher | None = None,
        engines: Engines | None = None,
        meeting_folder: Path | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._ends: list[tuple[bool, Failure]] = []
        self._failure: Failure | None = None
        self._is_leaving = False
        self._launcher = launcher or HostLauncher()
        started, store = self._launcher.start(RanksWanted(size, device, num_threads, first_device))
        self._ranks = [RankLink(number, rank, self._ended) for number, rank in enumerate(started)]
        try:
            for rank in self._ranks:
                rank.watch()
            places = tuple(rank.place for rank in started)
            if meeting_folder is not None:
                store = StoreFile(str(meeting_folder / "ranks"))
            meeting = Meeting(places, store or self._keep_store(places[0].host), num_stages, engines or Engines())
            self._sampling = meeting.first_that_samples
            joined = [rank.ask(encode(Join(rank.rank, device, meeting))) for rank in self._ranks]
            for answer in joined:
                answer.result()
        except BaseException as error:
            self.close(grace=0.0)
            if self._failure is None:
                raise
            raise EngineStartError(self._failure) from error

    @property
    def failure(self) -> Failure | None:
        """What ended them; None while all work. For any thread."""
        return self._failure

    @property
    def is_preparing(self) -> bool:
        """Whether one of them captures or compiles. For any thread."""
        return any(rank.is_preparing for rank in self._ranks)

    @property
    def stopped(self) -> tuple[int, ...]:
        """The ranks that a signal has stopped, for which the others wait. For any thread."""
        return tuple(rank.rank for rank in self._ranks if rank.started.is_stopped)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that are on this host, by rank."""
        return [pid for rank in self._ranks if (pid := rank.started.pid) is not None]

    def tell(self, message: ToRank) -> None:
        """Send a message to all, which none answers."""
        data = encode(message)
        for rank in self._ranks:
            rank.send(data)

    def ask(self, message: ToRank) -> list[Any]:
        """Send a message to all, and wait for their answers, by rank.

        Raises:
            EngineDeadError: one of them has ended.
        """
        data = encode(message)
        answers = [rank.ask(data) for rank in self._ranks]
        return [answer.result() for answer in answers]

    def ask_for_samples(self, message: Sample) -> Future[Any]:
        """Send a message to all, which the first rank of the last stage answers."""
        data = encode(message)
        answer = self._ranks[self._sampling].ask(data)
        for rank in self._ranks:
            if rank.rank != self._sampling:
                rank.send(data)
        return answer

    def close(self, grace: float = LEAVE_SECONDS) -> None:
        """Let them finish for so many seconds, then end them; nothing of them is left."""
        self._is_leaving = True
        if grace and self._failure is None:
            self.tell(Leave())
            for rank in self._ranks:
                if not rank.wait(grace):
                    break
        self._kill()
        for rank in self._ranks:
            rank.wait(LEAVE_SECONDS)
            rank.close()
            rank.fail(Failure("engine", "the ranks have been closed"))
        self._launcher.close()

    def _keep_store(self, host: str) -> StoreAddress:
        kept: StoreKept = self._ranks[0].ask(encode(KeepStore(host))).result()
        return StoreAddress(host, kept.port, kept.descriptor)

    def _ended(self, failure: Failure, lost_others: bool) -> None:
        """Called from the threads of ranks."""
        with self._lock:
            self._ends.append((lost_others, failure))
            is_first_of_its_kind = [lost for lost, _ in self._ends].count(lost_others) == 1
        if is_first_of_its_kind and not self._is_leaving:
            has_other_nodes = any(rank.started.place.host for rank in self._ranks)
            patience = LOST_NODE_SECONDS if lost_others and has_other_nodes else GATHER_SECONDS
            timer = threading.Timer(patience, self._conclude)
            timer.daemon = True
            timer.start()

    def _conclude(self) -> None:
        """The cause is the first end, but for those that only lost others."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure = min(self._ends, key=lambda end: end[0])[-1]
        for rank in self._ranks:
            rank.fail(failure)
        self._kill()

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.started.kill()
