"""`WorkerThread`: runs calls one after the other in a thread of its own.

Every step makes two calls. Those of a pool bring a future each, whose locks and conditions are much for a small step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Call:
    """A call that waits for its turn, runs, or has run."""

    __slots__ = ("_arguments", "_error", "_function", "_has_run", "_running", "_value")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._has_run, self._value = False, None
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """For the thread alone."""
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:  # who waits for the result raises it
            self._error = error
        # Nobody needs them any more, and steps are large.
        del self._function, self._arguments
        self._has_run = True
        self._running.release()

    def wait(self) -> None:
        """Wait until it has run. A wait that was interrupted may be taken up again."""
        if not self._has_run:
            with self._running:
                pass

    def result(self) -> Any:
        """Wait for what the function returns; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class WorkerThread:
    """A thread that ends with `close`, with its last reference, or with the process, after the calls that it was given.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        # As a daemon it is not waited for before the finalizer ends it.
        thread = threading.Thread(target=_run_all, args=(self._calls,), name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._calls, thread)

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return not self._end.alive

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Have ``function(*arguments)`` called after all that was submitted before.

        Raises:
            RuntimeError: the thread was closed.
        """
        if self.is_closed:
            raise RuntimeError("the worker's thread has ended: nothing runs after shutdown()")
        call = Call(function, arguments)
        self._calls.put(call)
        return call

    def close(self) -> None:
        """Wait for what was submitted, and end the thread."""
        self._end()


def _run_all(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # or the last one would keep what it returned until the next comes


def _end(calls: SimpleQueue[Call | None], thread: threading.Thread) -> None:
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join()
