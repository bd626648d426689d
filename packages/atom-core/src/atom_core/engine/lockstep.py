"""`Lockstep`: engines that share their experts take each step together, and agree on it before. Torch-free."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from atom_core.errors import EngineDeadError, EngineStartError
from atom_core.failure import Failure
from atom_core.worker.ranks.meeting import Engines

# An engine that has not said for so long how many rows it has will not do so.
AGREE_SECONDS = 300.0
MEET_SECONDS = 600.0
_TRY_SECONDS = 0.05
# An exchange may break a moment before it is heard that another engine is gone.
_LOST_SECONDS = 1.0
# The number of a step, and how many rows the engine has in it; when they meet, the engine's number in place of these.
_WORD = struct.Struct("<qq")


class Lockstep:
    """Says before each step how many rows an engine has, and hears it of the others. One thread takes the steps.

    Whoever has rows begins a step, and calls the others thereby: those without any take part all the same, since their
    experts are needed.

    Args:
        folder: where the engines find each other; nobody else can enter it.
        engines: which this one is.

    Raises:
        OSError: another engine has its number.
    """

    is_shared = True

    def __init__(self, folder: Path, engines: Engines) -> None:
        self._folder, self._engines = folder, engines
        self._on_call: Callable[[], None] = lambda: None
        self._step = 0
        self._failure: Failure | None = None
        self._heard: dict[int, SimpleQueue[int | None]] = {
            number: SimpleQueue() for number in range(engines.count) if number != engines.number
        }
        self._ends: dict[int, socket.socket] = {}
        self._thread: threading.Thread | None = None
        self._listener = _socket()
        self._listener.bind(self._address(engines.number))
        self._listener.listen(engines.count)

    def meet(self) -> None:
        """Wait for the other engines.

        Raises:
            EngineStartError: one of them did not come.
        """
        deadline = time.monotonic() + MEET_SECONDS
        for number in range(self._engines.number):
            self._ends[number] = self._reach(number, deadline)
        self._listener.settimeout(MEET_SECONDS)
        while len(self._ends) < self._engines.count - 1:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                raise EngineStartError(f"another engine did not come within {MEET_SECONDS:.0f} s") from None
            self._ends[_WORD.unpack(end.recv(_WORD.size))[1]] = end
        self._listener.close()
        self._thread = threading.Thread(target=self._listen, name="lockstep", daemon=True)
        self._thread.start()

    def on_call(self, called: Callable[[], None]) -> None:
        """Have a thread call this whenever another engine begins a step, or is gone."""
        self._on_call = called

    @property
    def is_called(self) -> bool:
        """Whether another engine waits for this one to take a step."""
        return any(not heard.empty() for heard in self._heard.values())

    @property
    def failure(self) -> Failure | None:
        """That another engine is gone; None while all are there. For any thread."""
        return self._failure

    def lost(self) -> Failure | None:
        """As `failure`, where it may take a moment to be heard."""
        if self._thread is not None:
            self._thread.join(_LOST_SECONDS)  # it ends with the first engine that is gone
        return self._failure

    def agree(self, num_rows: int) -> tuple[int, ...]:
        """How many rows each engine has in the step that all of them take now, by its number.

        Args:
            num_rows: rows that this one has, which may be none.

        Raises:
            EngineDeadError: another one is gone, or has not answered for too long.
        """
        self._step += 1
        for end in self._ends.values():
            with contextlib.suppress(OSError):  # what is heard of it tells of its end
                end.send(_WORD.pack(self._step, num_rows))
        rows = {self._engines.number: num_rows}
        for number, heard in self._heard.items():
            rows[number] = self._answer(number, heard)
        return tuple(rows[number] for number in range(self._engines.count))

    def close(self) -> None:
        """Take no further step: the others cannot go on."""
        self._listener.close()
        for end in self._ends.values():
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens
        if self._thread is not None:
            self._thread.join()
        for end in self._ends.values():
            end.close()

    def _answer(self, number: int, heard: SimpleQueue[int | None]) -> int:
        try:
            found = heard.get(timeout=AGREE_SECONDS)
        except Empty:
            cause = f"engine {number} has not answered for {AGREE_SECONDS:.0f} s, and shares its experts with this one"
            raise EngineDeadError(Failure("engine", cause)) from None
        if found is None:
            heard.put(None)
            raise EngineDeadError(self._failure or _gone(number))
        return found

    def _address(self, number: int) -> str:
        return str(self._folder / f"engine-{number}")

    def _reach(self, number: int, deadline: float) -> socket.socket:
        while True:
            end = _socket()
            try:
                end.connect(self._address(number))
            except OSError:
                end.close()
                if time.monotonic() > deadline:
                    raise EngineStartError(f"engine {number} did not come within {MEET_SECONDS:.0f} s") from None
                time.sleep(_TRY_SECONDS)
                continue
            end.send(_WORD.pack(0, self._engines.number))
            return end

    def _listen(self) -> None:
        """Hear what the others say, until one of them is gone."""
        with selectors.DefaultSelector() as selector:
            for number, end in self._ends.items():
                selector.register(end, selectors.EVENT_READ, number)
            while self._failure is None:
                for key, _ in selector.select():
                    self._hear(key.data)
                self._on_call()

    def _hear(self, number: int) -> None:
        try:
            word = self._ends[number].recv(_WORD.size)
        except OSError:
            word = b""
        if word:
            self._heard[number].put(_WORD.unpack(word)[1])
            return
        self._failure = self._failure or _gone(number)
        for heard in self._heard.values():  # whoever waits for any of them need not
            heard.put(None)


class NoLockstep:
    """An engine that has all of its experts, and takes its steps alone."""

    is_shared, is_called, failure = False, False, None

    def meet(self) -> None: ...

    def on_call(self, called: Callable[[], None]) -> None: ...

    def lost(self) -> Failure | None: ...

    def agree(self, num_rows: int) -> tuple[int, ...]:
        return ()

    def close(self) -> None: ...


def _socket() -> socket.socket:
    """One that keeps messages apart."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _gone(number: int) -> Failure:
    return Failure("engine", f"engine {number} is gone, and had experts that the others need")
