"""`GrammarCompiler`: compiles grammars in threads of its own, with a deadline and a bounded memory of results."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.constraints.grammar import GrammarError, kind_of

# The work on one grammar, and the wait until a thread takes it up.
DEADLINE_SECONDS = 5.0
QUEUE_SECONDS = 20.0
MAX_GRAMMARS = 256
MAX_BYTES = 256 << 20
NUM_THREADS = 2
# How often a waiting caller looks at the clock.
_LOOK_SECONDS = 0.5


class CompilerBusyError(RuntimeError):
    """The compilers have so much to do that a grammar was not even begun; nothing is known against it."""


class Compilation:
    """A constraint on its way to a grammar.

    Attributes:
        grammar: what comes of it; fails with what the work raises, GrammarError as a rule.
        num_waiting: callers that wait for it."""

    def __init__(
        self, params: StructuredOutputParams, clock: Callable[[], float], deadline: float = DEADLINE_SECONDS
    ) -> None:
        self.grammar: Future[Any] = Future()
        self.params = params
        self.num_waiting = 0
        self._clock, self._deadline = clock, deadline
        self._submitted = clock()
        self._begun: float | None = None

    def overdue(self) -> GrammarError | CompilerBusyError | None:
        """Why callers should stop waiting: the work takes too long, or has not begun for too long."""
        now = self._clock()
        if self.grammar.done():
            return None
        if self._begun is not None:
            return GrammarError(too_slow(self.params)) if now - self._begun > self._deadline else None
        if now - self._submitted > QUEUE_SECONDS:
            return CompilerBusyError("too many other grammars are being compiled; try again later")
        return None

    def has_failed_by_itself(self) -> bool:
        """Whether the work failed, and not the constraint: it may go well another time."""
        if not self.grammar.done() or self.grammar.cancelled():
            return False
        error = self.grammar.exception()
        return error is not None and not isinstance(error, GrammarError)

    def run(self, compile_grammar: Callable[[StructuredOutputParams], Any]) -> None:
        """Do the work, unless no caller waits for it any more."""
        if not self.grammar.set_running_or_notify_cancel():
            return
        self._begun = self._clock()
        try:
            self.grammar.set_result(compile_grammar(self.params))
        except BaseException as error:
            self.grammar.set_exception(error)


class GrammarCompiler:
    """Turns constraints into grammars, each constraint once.

    Args:
        compile_grammar: does the work, in one of the threads.
        max_grammars, max_bytes: kept in memory; the one unused for longest goes first.
        deadline: seconds of work on one grammar; infinite where the work has limits of its own.
        clock: seconds, for deadlines.
    """

    def __init__(
        self,
        compile_grammar: Callable[[StructuredOutputParams], Any],
        *,
        max_grammars: int = MAX_GRAMMARS,
        max_bytes: int = MAX_BYTES,
        deadline: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compile = compile_grammar
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._deadline = deadline
        self._clock = clock
        self._lock = threading.Lock()
        self._compilations: OrderedDict[bytes, Compilation] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")

    def submit(self, params: StructuredOutputParams) -> Compilation:
        """The compilation of `params`, begun now or before. A caller that stops waiting calls `leave`."""
        key = _key(params)
        with self._lock:
            compilation = self._compilations.get(key)
            if compilation is None or compilation.has_failed_by_itself():
                compilation = self._compilations[key] = Compilation(params, self._clock, self._deadline)
                self._threads.submit(compilation.run, self._compile)
            compilation.num_waiting += 1
            self._compilations.move_to_end(key)
            while len(self._compilations) > self._max_grammars or self._num_bytes() > self._max_bytes:
                self._compilations.popitem(last=False)
        return compilation

    def leave(self, compilation: Compilation) -> None:
        """A caller no longer waits; work that no caller waits for is not begun."""
        with self._lock:
            compilation.num_waiting -= 1
            if compilation.num_waiting == 0 and compilation.grammar.cancel():
                self._compilations.pop(_key(compilation.params), None)

    def check(self, params: StructuredOutputParams) -> None:
        """Wait for a grammar.

        Raises:
            GrammarError: it is not sound, or not within `DEADLINE_SECONDS` of work.
            CompilerBusyError: work on it did not begin within `QUEUE_SECONDS`.
        """
        with self._awaited(params) as compilation:
            while not compilation.grammar.done():
                wait([compilation.grammar], _LOOK_SECONDS)
                _refuse_overdue(compilation)
            compilation.grammar.result()

    async def check_async(self, params: StructuredOutputParams) -> None:
        """The same for a coroutine: its event loop goes on."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended before the work
                loop.call_soon_threadsafe(done.set)

        with self._awaited(params) as compilation:
            compilation.grammar.add_done_callback(tell)
            while not compilation.grammar.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), _LOOK_SECONDS)
                _refuse_overdue(compilation)
            compilation.grammar.result()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.contextmanager
    def _awaited(self, params: StructuredOutputParams) -> Iterator[Compilation]:
        compilation = self.submit(params)
        try:
            yield compilation
        finally:
            self.leave(compilation)

    def __len__(self) -> int:
        return len(self._compilations)

    def _num_bytes(self) -> int:
        futures = (compilation.grammar for compilation in self._compilations.values())
        done = [future for future in futures if future.done() and not future.cancelled()]
        grammars = [future.result() for future in done if future.exception() is None]
        return sum(grammar.num_bytes() for grammar in grammars if isinstance(grammar, Grammar))


def too_slow(params: StructuredOutputParams) -> str:
    """What to say of a grammar that missed its deadline."""
    return f"{kind_of(params)} took longer than {DEADLINE_SECONDS:g} s to compile; make it simpler"


def _refuse_overdue(compilation: Compilation) -> None:
    if (error := compilation.overdue()) is not None:
        raise error


def _key(params: StructuredOutputParams) -> bytes:
    return msgspec.json.encode(params)
