"""`HostLauncher`: ranks as processes that this one starts, over sockets without a name. Torch-free."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from atom_core import settings
from atom_core.executor.launchers.protocol import RanksWanted
from atom_core.failure import describe_exit
from atom_core.worker.ranks.meeting import Place, StoreFile, on_this_host

# States of processes, as the kernel names them: stopped by a signal, and by a debugger.
_STOPPED = ("T", "t")


def this_python(module: str) -> list[str]:
    """The command that runs a module in another process."""
    return [sys.executable, "-m", module]


WORKER = this_python("atom_core.executor.processes.worker")


class HostLauncher:
    """Ranks that find each other in a file without a name, which they inherit: no path, no port, nothing to remove.

    They end with this process, however it ends.

    Args:
        command: runs a rank, with the number of a descriptor and this process's id as its last arguments.
    """

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = command

    def start(self, wanted: RanksWanted) -> tuple[list[SpawnedRank], StoreFile]:
        started: list[SpawnedRank] = []
        environment = settings.rank_environment(wanted.num_threads)
        store = os.memfd_create("atom-ranks")
        try:
            for place in on_this_host(wanted.size, wanted.first_device):
                started.append(SpawnedRank.start(self._command, place, inherits=(store,), environment=environment))
        except BaseException:
            for rank in started:
                rank.kill()
                rank.end.close()
            raise
        finally:
            os.close(store)
        return started, StoreFile(f"/proc/self/fd/{store}")

    def close(self) -> None:
        """Nothing is left of processes that have ended."""


class SpawnedRank:
    """A rank's process that this one started. A thread of ours belongs to it.

    Attributes:
        place: where it runs.
        end: our end of the connection to it.
        ended: how it ended, once it has.
    """

    def __init__(self, place: Place, end: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.place, self.end = place, end
        self.ended: Future[str] = Future()
        self._process = process

    @classmethod
    def start(
        cls, command: Sequence[str], place: Place, *, inherits: Sequence[int], environment: Mapping[str, str]
    ) -> SpawnedRank:
        """Start a process that has the other end of a pair of sockets; see `start_rank`."""
        ours, theirs = socket.socketpair()
        started: Future[SpawnedRank] = Future()

        def live() -> None:
            # Linux ends a process with the thread that started it, if it asks for that: so this thread stays.
            try:
                process = start_rank(command, theirs, inherits=inherits, environment=environment)
            except BaseException as error:
                ours.close()
                started.set_exception(error)
                return
            rank = cls(place, ours, process)
            started.set_result(rank)
            rank.ended.set_result(describe_exit(process.wait()))

        threading.Thread(target=live, name="rank", daemon=True).start()
        return started.result()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        # The name before it may have anything in it, parentheses too.
        return stat.rpartition(")")[2].split()[0] in _STOPPED

    def kill(self) -> None:
        self._process.kill()


def start_rank(
    command: Sequence[str], end: socket.socket, *, inherits: Sequence[int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start ``command FD PARENT``: a rank that ends with the calling thread, and gets its steps over `end`.

    Args:
        command: runs a rank.
        end: its connection to the engine, which is closed here.
        inherits: further descriptors that it keeps.
        environment: the variables of its process.

    Raises:
        OSError: the system starts no process.
    """
    with end:
        descriptor = end.fileno()
        line = [*command, str(descriptor), str(os.getpid())]
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=(descriptor, *inherits), env={**environment})
