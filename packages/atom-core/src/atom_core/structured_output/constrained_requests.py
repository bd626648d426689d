"""`ConstrainedRequests`: the engine's requests that have a grammar, from its compilation to their last token."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from atom_core.config.sections import StructuredOutputConfig
from atom_core.messages import EngineOutput, EngineRequest, SchedulerOutput
from atom_core.structured_output.backend import Parser
from atom_core.structured_output.compiler import Compilation, CompilerBusyError
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.matcher import MAX_FORCED, Matcher
from atom_core.structured_output.thinking import ThinkingParser
from atom_core.tokenization import Tokenizer

logger = logging.getLogger(__name__)


@dataclass
class _Waiting:
    """A request whose grammar is being compiled, by the first of `backends`."""

    request: EngineRequest
    compilation: Compilation | None = None
    backends: list[str] = field(default_factory=list)


class Refusal(NamedTuple):
    """Why a request cannot run; `code` as in `InvalidRequestError`."""

    reason: str
    code: str


class ConstrainedRequests:
    """Holds requests back until their grammar is compiled, then keeps a matcher for each.

    Matchers outlive a preemption: they follow the tokens that are reported, whatever the scheduler does with blocks.

    Args:
        open_tokenizer: reads the model's tokenizer; called in a thread, with the first constrained request.
        vocab_size: rows of the model's head.
        eos_token_ids: the model's.
        config: the settings.
        clock: seconds, for deadlines.
    """

    def __init__(
        self,
        open_tokenizer: Callable[[], Tokenizer],
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        config: StructuredOutputConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocab_size = vocab_size
        config = config or StructuredOutputConfig()
        self._jump_forward = config.jump_forward
        self._make_compilers = lambda: Compilers(
            open_tokenizer(), vocab_size, eos_token_ids, config.backend, clock=clock
        )
        self._compilers: Future[Compilers] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._matchers: dict[str, Matcher] = {}
        self._free_after_thinking: dict[str, ThinkingParser] = {}

    def hold(self, request: EngineRequest) -> None:
        """Begin to compile the grammar of `request`; `take_ready` gives it back."""
        if self._compilers is None:
            starter = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
            self._compilers = starter.submit(self._make_compilers)
            starter.shutdown(wait=False)
        self._waiting[request.request_id] = _Waiting(request)

    def has_waiting(self) -> bool:
        """Whether any request waits for its grammar."""
        return bool(self._waiting)

    def take_ready(self) -> Iterable[tuple[EngineRequest, Refusal | None]]:
        """Requests that wait no longer, each with the reason why it cannot run, or None."""
        ready: list[tuple[EngineRequest, Refusal | None]] = []
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
                ready.append((waiting.request, refusal))
        return ready

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests whose grammar is not ready yet; others are the scheduler's to end."""
        found = [request_id for request_id in request_ids if request_id in self._waiting]
        for request_id in found:
            self._stop_waiting(request_id)
        return [EngineOutput(request_id, [], finish_reason="abort") for request_id in found]

    def rows(self, step: SchedulerOutput) -> list[str]:
        """Ids of the requests that sample under a grammar in `step`."""
        if not self._matchers:
            return []
        return [
            entry.request_id for entry in step.scheduled if entry.num_samples and entry.request_id in self._matchers
        ]

    def masks(self, request_ids: Iterable[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Masks of requests that still run, and why others cannot go on."""
        masks: dict[str, np.ndarray] = {}
        errors: dict[str, str] = {}
        for request_id in request_ids:
            matcher = self._matchers.get(request_id)
            if matcher is None:
                continue  # the step before this one ended it
            masks[request_id] = matcher.mask()
            if (error := matcher.error) is not None:
                errors[request_id] = error
                del masks[request_id]
        return masks, errors

    def take_forced(self, request_ids: Iterable[str]) -> dict[str, list[int]]:
        """The next tokens of each request, from the one about to be sampled on, as far as its grammar has one way."""
        found = {}
        for request_id in request_ids:
            matcher = self._matchers.get(request_id)
            if matcher is not None and (token_ids := matcher.take_forced()):
                found[request_id] = token_ids
        return found

    def follow(self, news: Iterable[EngineOutput]) -> None:
        """Take in the tokens that the scheduler reported; forget requests that ended."""
        if not self._matchers:
            return
        for output in news:
            if output.finish_reason is not None:
                self._forget(output.request_id)
            elif (matcher := self._matchers.get(output.request_id)) is not None:
                matcher.accept(output.new_token_ids)
                thinking = self._free_after_thinking.get(output.request_id)
                if thinking is not None and thinking.is_over:
                    self._forget(output.request_id)

    def close(self) -> None:
        """Let the compilers' threads end."""
        if self._compilers is not None and self._compilers.done() and self._compilers.exception() is None:
            self._compilers.result().close()

    def _forget(self, request_id: str) -> None:
        self._matchers.pop(request_id, None)
        self._free_after_thinking.pop(request_id, None)

    def _stop_waiting(self, request_id: str) -> None:
        self._leave_compilation(self._waiting.pop(request_id))

    def _leave_compilation(self, waiting: _Waiting) -> None:
        if waiting.compilation is not None and self._compilers is not None:
            self._compilers.result().leave(waiting.backends[0], waiting.compilation)
            waiting.compilation = None

    def _try(self, waiting: _Waiting) -> bool:
        """Make the matcher if the grammar is ready; raises what went wrong with it."""
        params = waiting.request.sampling_params
        if self._compilers is None or not self._compilers.done():
            return False
        compilers = self._compilers.result()
        if params.structured_outputs is None:
            self._start(waiting.request, None)
            return True
        if waiting.compilation is None:
            waiting.backends = waiting.backends or list(compilers.choose(params.structured_outputs))
            waiting.compilation = compilers.submit(waiting.backends[0], params.structured_outputs)
        grammar, overdue = waiting.compilation.grammar, waiting.compilation.overdue()
        has_failed = grammar.done() and grammar.exception() is not None
        if (overdue or has_failed) and len(waiting.backends) > 1:
            self._leave_compilation(waiting)
            failed = waiting.backends.pop(0)
            logger.info("structured output: %s failed at a constraint; %s takes it", failed, waiting.backends[0])
            return False
        if overdue:
            raise overdue
        if not grammar.done():
            return False
        self._start(waiting.request, grammar.result().start())
        return True

    def _start(self, request: EngineRequest, parser: Parser | None) -> None:
        """Follow a request from now on; `parser` is at the start of its grammar, where it has one."""
        params = request.sampling_params
        if params.thinking_budget is not None and self._compilers is not None:
            thinking = ThinkingParser(params.thinking_budget, self._compilers.result().vocabulary, parser)
            if parser is None:
                self._free_after_thinking[request.request_id] = thinking
            parser = thinking
        if parser is not None:
            ends = {*request.eos_token_ids, *(params.stop_token_ids or ())}
            # What is not sampled has no logprobs.
            max_forced = MAX_FORCED if self._jump_forward and params.logprobs is None else 0
            matcher = Matcher(parser, self._vocab_size, sorted(ends), max_forced=max_forced)
            self._matchers[request.request_id] = matcher
