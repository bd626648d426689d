"""`WaitingRequests`: requests from their arrival until their grammar is compiled and their first mask is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from atom_core.messages import EngineRequest
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.compiler import Compilation, CompilerBusyError
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.config import StructuredOutputConfig
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.followed_text import FollowedText
from atom_core.structured_output.mask_thread import MaskThread
from atom_core.structured_output.matcher import MAX_FORCED, Matcher
from atom_core.structured_output.thinking import ThinkingParser
from atom_core.structured_output.work_budget import WorkBudget
from atom_core.tokenization import Tokenizer

logger = logging.getLogger(__name__)


@dataclass
class _Waiting:
    """A request whose grammar is being compiled, by the first of `backends`; then its first mask is made."""

    request: EngineRequest
    compilation: Compilation | None = None
    backends: list[str] = field(default_factory=list)
    followed: FollowedText | None = None


class Refusal(NamedTuple):
    """Why a request cannot run; `code` as in `InvalidRequestError`."""

    reason: str
    code: str


class Ready(NamedTuple):
    """A request that waits no longer: why it cannot run, or what follows it; neither where nothing binds it."""

    request: EngineRequest
    refusal: Refusal | None
    followed: FollowedText | None


class WaitingRequests:
    """Compiles a grammar for each request; requests of one caller share a budget of work.

    Args:
        thread: makes first masks.
        has_room: whether one more text may be followed by a grammar.

    Others are as for `ConstrainedRequests`.

    Attributes:
        compilers: None before the first request.
    """

    def __init__(
        self,
        open_tokenizer: Callable[[], Tokenizer],
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        config: StructuredOutputConfig,
        thread: MaskThread,
        has_room: Callable[[Grammar], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocab_size, self._thread, self._has_room = vocab_size, thread, has_room
        self._jump_forward = config.jump_forward
        self._make_compilers = lambda: Compilers(
            open_tokenizer(), vocab_size, eos_token_ids, config.backend, clock=clock
        )
        self.compilers: Future[Compilers] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._budgets: WeakValueDictionary[str, WorkBudget] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[EngineRequest]:
        return (waiting.request for waiting in self._waiting.values())

    @property
    def begun(self) -> list[FollowedText]:
        """What follows requests whose first mask is being made."""
        return [waiting.followed for waiting in self._waiting.values() if waiting.followed is not None]

    def hold(self, request: EngineRequest) -> None:
        """Begin to compile the grammar of `request`."""
        if self.compilers is None:
            starter = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
            self.compilers = starter.submit(self._make_compilers)
            starter.shutdown(wait=False)
        self._waiting[request.request_id] = _Waiting(request)

    def take_ready(self) -> Iterator[Ready]:
        """Requests that wait no longer, one after the other: what follows one takes room before the next is tried."""
        for request_id, waiting in list(self._waiting.items()):
            refusal = None
            try:
                is_done = self._try(waiting)
            except CompilerBusyError as error:
                is_done, refusal = True, Refusal(str(error), "queue_full")
            except Exception as error:
                is_done, refusal = True, Refusal(str(error), "invalid_grammar")
            if is_done:
                self._stop_waiting(request_id)
                yield Ready(waiting.request, refusal, waiting.followed if refusal is None else None)

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        """Give requests up; the ids of those that waited."""
        found = [request_id for request_id in request_ids if request_id in self._waiting]
        for request_id in found:
            self._stop_waiting(request_id)
        return found

    def close(self) -> None:
        """Let the compilers' threads end."""
        if self.compilers is not None and self.compilers.done() and self.compilers.exception() is None:
            self.compilers.result().close()

    def _stop_waiting(self, request_id: str) -> None:
        waiting = self._waiting.pop(request_id)
        self._leave_compilation(waiting)
        if waiting.followed is not None and waiting.followed.job is not None:
            waiting.followed.job.is_wanted = False

    def _leave_compilation(self, waiting: _Waiting) -> None:
        if waiting.compilation is not None and self.compilers is not None:
            self.compilers.result().leave(waiting.backends[0], waiting.compilation)
            waiting.compilation = None

    def _try(self, waiting: _Waiting) -> bool:
        """Whether grammar and first mask are ready; raises what went wrong with them."""
        if self.compilers is None or not self.compilers.done():
            return False
        if waiting.followed is None:
            grammar = None
            if waiting.request.sampling_params.structured_outputs is not None:
                grammar = self._compiled(waiting, self.compilers.result())
                if grammar is None or not self._has_room(grammar):
                    return False
            waiting.followed = self._make(waiting.request, grammar, self.compilers.result())
            if waiting.followed is None:
                return True
            waiting.followed.job = self._thread.begin(waiting.followed.matcher)
        followed = waiting.followed
        if followed.job is not None and not followed.job.is_done:
            return False
        if (error := followed.matcher.error) is not None:
            raise GrammarError(f"the grammar of this request cannot be followed: {error}")
        return True

    def _compiled(self, waiting: _Waiting, compilers: Compilers) -> Grammar | None:
        """The grammar of a request, None while it is compiled; raises what went wrong with it."""
        constraint = waiting.request.sampling_params.structured_outputs
        if waiting.compilation is None and constraint is not None:
            waiting.backends = waiting.backends or list(compilers.choose(constraint))
            waiting.compilation = compilers.submit(waiting.backends[0], constraint)
        if waiting.compilation is None:
            return None
        grammar, overdue = waiting.compilation.grammar, waiting.compilation.overdue()
        has_failed = grammar.done() and grammar.exception() is not None
        if (overdue or has_failed) and len(waiting.backends) > 1:
            self._leave_compilation(waiting)
            failed = waiting.backends.pop(0)
            logger.info("structured output: %s failed at a constraint; %s takes it", failed, waiting.backends[0])
            return None
        if overdue:
            raise overdue
        return grammar.result() if grammar.done() else None

    def _make(self, request: EngineRequest, grammar: Grammar | None, compilers: Compilers) -> FollowedText | None:
        """What follows a request from its first token on; None where nothing binds it."""
        params = request.sampling_params
        parser = None if grammar is None else grammar.start()
        thinking = None
        if params.thinking_budget is not None:
            parser = thinking = ThinkingParser(params.thinking_budget, compilers.vocabulary, parser)
        if parser is None:
            return None
        ends = {*request.eos_token_ids, *(params.stop_token_ids or ())}
        # What is not sampled has no logprobs.
        max_forced = MAX_FORCED if self._jump_forward and params.logprobs is None else 0
        budget = self._budgets.get(request.caller_id)
        if budget is None:
            budget = self._budgets[request.caller_id] = WorkBudget()
        budget.add_sample()
        matcher = Matcher(parser, self._vocab_size, sorted(ends), max_forced=max_forced, budget=budget)
        return FollowedText(matcher, grammar, thinking if grammar is None else None)
