"""`RankProcess`: one rank's process as the engine sees it: what is sent, what is answered, how it ends. Torch-free."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from atom_core.errors import EngineDeadError
from atom_core.executor.processes.channel import Channel
from atom_core.executor.processes.wire import Failed, Preparing, decode_from_rank
from atom_core.failure import Failure, describe_exit

# What a rank said last is read before its end is told. Processes that it started may hold the channel open for longer.
LAST_WORDS_SECONDS = 0.2
# States of processes, as the kernel names them: stopped by a signal, and by a debugger.
_STOPPED = ("T", "t")

OnEnd = Callable[[Failure, bool], None]
"""Called once, from any thread: how the process ended, and whether that is what came of the end of another one."""


class RankProcess:
    """A process that answers in the order in which it is asked. Two threads of ours belong to it.

    Args:
        rank: its number.
        on_end: told once, when it ends or says that it will.

    Attributes:
        is_preparing: a capture or a compilation runs.
    """

    def __init__(self, rank: int, on_end: OnEnd) -> None:
        self.rank, self.is_preparing = rank, False
        self._on_end = on_end
        ours, self._theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._open: deque[Future[Any]] = deque()
        self._failure: Failure | None = None
        self._has_ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], *, inherits: int, environment: Mapping[str, str]) -> None:
        """Start ``command FD``, where FD is its end of the channel; it inherits the descriptor `inherits` too.

        Raises:
            OSError: the system starts no process.
        """
        started: Future[None] = Future()
        descriptor = self._theirs.fileno()
        line = [*command, str(descriptor)]
        listener = threading.Thread(target=self._listen, name=f"rank-{self.rank}-answers", daemon=True)

        def live() -> None:
            # Linux ends a process with the thread that started it, if it asks for that: so this thread stays.
            try:
                self._process = process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, pass_fds=(descriptor, inherits), env={**environment}
                )
            except BaseException as error:
                started.set_exception(error)
                return
            finally:
                self._theirs.close()
            started.set_result(None)
            code = process.wait()
            listener.join(LAST_WORDS_SECONDS)
            self._end(Failure("engine", f"rank {self.rank} {describe_exit(code)}"))

        listener.start()
        threading.Thread(target=live, name=f"rank-{self.rank}", daemon=True).start()
        started.result()

    @property
    def pid(self) -> int | None:
        """The id of the process; None before it starts."""
        return None if self._process is None else self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process, which takes nothing in and does not end."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        # The name before it may have anything in it, parentheses too.
        return stat.rpartition(")")[2].split()[0] in _STOPPED

    def send(self, data: bytes) -> None:
        """Send an encoded message that is not answered. One that is gone hears nothing, and `on_end` tells of it."""
        try:
            self._channel.send(data)
        except OSError:
            return

    def ask(self, data: bytes) -> Future[Any]:
        """Send an encoded message; its answer comes, or EngineDeadError once `fail` was called."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._failure is not None:
                answer.set_exception(EngineDeadError(self._failure))
                return answer
            self._open.append(answer)
        self.send(data)
        return answer

    def fail(self, failure: Failure) -> None:
        """Whoever waits for an answer gets an error, now and later."""
        with self._lock:
            self._failure = failure
            lost = [*self._open]
            self._open.clear()
        for answer in lost:
            answer.set_exception(EngineDeadError(failure))

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False if it still runs."""
        try:
            if self._process is not None:
                self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close the channel, after the end of the process."""
        self._channel.close()
        self._theirs.close()  # open still where no process was started

    def _listen(self) -> None:
        while (data := self._channel.receive()) is not None:
            try:
                message = decode_from_rank(data)
            except msgspec.DecodeError as error:
                # Nobody knows what it answers, so its caller would wait for ever.
                self._end(Failure("engine", f"a message of rank {self.rank} cannot be read: {error}"))
                return
            match message:
                case Failed(failure, lost_others):
                    self._end(Failure(failure.kind, f"rank {self.rank}: {failure.cause}", failure.trace), lost_others)
                case Preparing(is_preparing):
                    self.is_preparing = is_preparing
                case _:
                    with self._lock:
                        answer = self._open.popleft() if self._open else None
                    if answer is not None:
                        answer.set_result(message)

    def _end(self, failure: Failure, lost_others: bool = False) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._on_end(failure, lost_others)


def this_python(module: str) -> list[str]:
    """The command that runs a module in another process."""
    return [sys.executable, "-m", module]
