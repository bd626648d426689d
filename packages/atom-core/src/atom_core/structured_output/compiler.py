"""`GrammarCompiler`: compiles grammars in threads of its own, with a deadline and a bounded memory of results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineError
from typing import Any

import msgspec

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.grammar import GrammarError, grammar_of, kind_of

DEADLINE_SECONDS = 5.0
MAX_GRAMMARS = 256
NUM_THREADS = 2
LONGEST_MESSAGE = 300
# A state of the lexer takes 1 to 2 kB.
MAX_LEXER_STATES = 50_000


class GrammarCompiler:
    """Turns constraints into matchers at their start, each constraint once.

    Args:
        tokenizer: llguidance's; None checks grammars without a vocabulary.
        max_grammars: kept in memory; the one unused for longest goes first.
    """

    def __init__(self, tokenizer: Any = None, *, max_grammars: int = MAX_GRAMMARS) -> None:
        self._tokenizer = tokenizer
        self._max_grammars = max_grammars
        self._lock = threading.Lock()
        self._grammars: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")

    def submit(self, params: StructuredOutputParams) -> Future[Any]:
        """The matcher of `params` at its start, to be copied; the future fails with GrammarError."""
        key = msgspec.json.encode(params)
        with self._lock:
            future = self._grammars.get(key)
            if future is None:
                future = self._grammars[key] = self._threads.submit(self._compile, params)
                while len(self._grammars) > self._max_grammars:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(key)
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

    def _compile(self, params: StructuredOutputParams) -> Any:
        from llguidance import LLMatcher

        limits = parser_limits()
        grammar = grammar_of(params)
        if self._tokenizer is None:
            is_bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits)
            complaint = messages[0] if is_bad and messages else ""
            matcher = None
        else:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            complaint = matcher.get_error() if matcher.is_error() else ""
        if complaint:
            raise GrammarError(f"{kind_of(params)} is not valid: {_one_line(complaint)}")
        return matcher


def parser_limits() -> Any:
    """How much work and memory one grammar may take."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def too_slow(params: StructuredOutputParams) -> str:
    """What to say of a grammar that missed its deadline."""
    return f"{kind_of(params)} took longer than {DEADLINE_SECONDS:g} s to compile; make it simpler"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
