"""`RankLink`: one rank as the engine sees it: what is sent, what is answered, how it ends. Torch-free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import msgspec

from atom_core.errors import EngineDeadError
from atom_core.executor.launchers.protocol import StartedRank
from atom_core.executor.processes.channel import Channel
from atom_core.executor.processes.wire import Failed, Preparing, decode_from_rank
from atom_core.failure import Failure

# What a rank said last is read before its end is told. Processes that it started may hold the channel open for longer.
LAST_WORDS_SECONDS = 0.2

OnEnd = Callable[[Failure, bool], None]
"""Called once, from any thread: how the rank ended, and whether that is what came of the end of another one."""


class RankLink:
    """A rank that answers in the order in which it is asked. A thread of ours belongs to it.

    Args:
        rank: its number.
        started: its process.
        on_end: told once, when it ends or says that it will.

    Attributes:
        name: what people call it: its number, and its node where that is another one.
        is_preparing: a capture or a compilation runs.
    """

    def __init__(self, rank: int, started: StartedRank, on_end: OnEnd) -> None:
        self.rank, self.started, self.is_preparing = rank, started, False
        self.name = f"rank {rank}" + (f" on {started.place.host}" if started.place.host else "")
        self._on_end = on_end
        self._channel = Channel(started.end)
        self._lock = threading.Lock()
        self._open: deque[Future[Any]] = deque()
        self._failure: Failure | None = None
        self._has_ended = False
        self._listener = threading.Thread(target=self._listen, name=f"rank-{rank}-answers", daemon=True)

    def watch(self) -> None:
        """From now on take its answers, and tell of its end."""
        self._listener.start()
        self.started.ended.add_done_callback(self._process_ended)

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

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it still runs."""
        return bool(wait([self.started.ended], seconds).done)

    def close(self) -> None:
        """Close the channel, after the end of the process."""
        self._channel.close()

    def _listen(self) -> None:
        while True:
            try:
                if (data := self._channel.receive()) is None:
                    return
                message = decode_from_rank(data)
            except (msgspec.DecodeError, ConnectionError) as error:
                # Nobody knows what it answers, so its caller would wait for ever.
                self._end(Failure("engine", f"a message of {self.name} cannot be read: {error}"))
                return
            match message:
                case Failed(failure, lost_others):
                    self._end(Failure(failure.kind, f"{self.name}: {failure.cause}", failure.trace), lost_others)
                case Preparing(is_preparing):
                    self.is_preparing = is_preparing
                case _:
                    with self._lock:
                        answer = self._open.popleft() if self._open else None
                    if answer is not None:
                        answer.set_result(message)

    def _process_ended(self, ended: Future[str]) -> None:
        self._listener.join(LAST_WORDS_SECONDS)
        self._end(Failure("engine", f"{self.name} {ended.result()}"))

    def _end(self, failure: Failure, lost_others: bool = False) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._on_end(failure, lost_others)
