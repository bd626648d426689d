"""`GrammarCompiler`: compiles grammars in threads of its own, with a deadline and a bounded memory of results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineError
from typing import Any

import msgspec

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.grammar import GrammarError, kind_of

DEADLINE_SECONDS = 5.0
MAX_GRAMMARS = 256
MAX_BYTES = 256 << 20
NUM_THREADS = 2


class GrammarCompiler:
    """Turns constraints into grammars, each constraint once.

    Args:
        compile_grammar: does the work, in one of the threads.
        max_grammars, max_bytes: kept in memory; the one unused for longest goes first.
    """

    def __init__(
        self,
        compile_grammar: Callable[[StructuredOutputParams], Any],
        *,
        max_grammars: int = MAX_GRAMMARS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._compile = compile_grammar
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._grammars: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")

    def submit(self, params: StructuredOutputParams) -> Future[Any]:
        """What `compile_grammar` makes of `params`; the future fails with what it raises, GrammarError as a rule."""
        key = msgspec.json.encode(params)
        with self._lock:
            future = self._grammars.get(key)
            if future is None:
                future = self._grammars[key] = self._threads.submit(self._compile, params)
            self._grammars.move_to_end(key)
            while len(self._grammars) > self._max_grammars or self._num_bytes() > self._max_bytes:
                self._grammars.popitem(last=False)
        return future

    def check(self, params: StructuredOutputParams, deadline: float = DEADLINE_SECONDS) -> None:
        """Wait for a grammar; raise GrammarError unless it is sound within `deadline` seconds."""
        try:
            self.submit(params).result(deadline)
        except DeadlineError:
            raise GrammarError(too_slow(params)) from None

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._grammars)

    def _num_bytes(self) -> int:
        done = (future for future in self._grammars.values() if future.done() and future.exception() is None)
        return sum(getattr(future.result(), "num_bytes", 0) for future in done)


def too_slow(params: StructuredOutputParams) -> str:
    """What to say of a grammar that missed its deadline."""
    return f"{kind_of(params)} took longer than {DEADLINE_SECONDS:g} s to compile; make it simpler"
