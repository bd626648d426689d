"""`ConstrainedRequests`: the engine's requests that have a grammar, from its compilation to their last token."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from atom_core.messages import EngineOutput, EngineRequest, RequestState, SchedulerOutput
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.config import StructuredOutputConfig
from atom_core.structured_output.followed_text import FollowedText, held_bytes
from atom_core.structured_output.mask_thread import MaskJob, MaskThread
from atom_core.structured_output.waiting_requests import Refusal, WaitingRequests
from atom_core.structured_output.work_budget import StepBudget
from atom_core.tokenization import Tokenizer

logger = logging.getLogger(__name__)


# What followed texts may hold in memory: from the first on new ones wait, at the second the largest ends.
BYTES_FOR_NEW = 1 << 30
MAX_BYTES = 2 << 30
# Steps between two looks at the memory.
STEPS_BETWEEN_LOOKS = 16


class Masks(NamedTuple):
    """What `ConstrainedRequests.masks` made.

    Attributes:
        ready: int32 ``[ceil(vocab / 32)]`` for each request that goes on.
        errors: why others cannot.
        late: requests whose masks are made beside the engine's loop; `take_made` tells of them.
    """

    ready: dict[str, np.ndarray]
    errors: dict[str, str]
    late: list[str]


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
        self._thread = MaskThread()
        self._waiting = WaitingRequests(
            open_tokenizer,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            config=config or StructuredOutputConfig(),
            thread=self._thread,
            has_room=self._has_room,
            clock=clock,
        )
        self._followed: dict[str, FollowedText] = {}
        self._late: dict[str, MaskJob] = {}
        self._clock = clock
        self._step_budget = StepBudget(clock)
        self._num_steps = 0

    def hold(self, request: EngineRequest) -> None:
        """Begin to compile the grammar of `request`; `take_ready` gives it back."""
        self._waiting.hold(request)

    def has_waiting(self) -> bool:
        """Whether any request waits for its grammar."""
        return len(self._waiting) > 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their grammars."""
        return len(self._waiting)

    def states(self) -> list[RequestState]:
        """Where those stand that wait for their grammars."""
        return [RequestState(request.caller_id, "compiling grammar") for request in self._waiting]

    def take_ready(self) -> list[tuple[EngineRequest, Refusal | None]]:
        """Requests that wait no longer, each with the reason why it cannot run, or None."""
        ready = []
        for request, refusal, followed in self._waiting.take_ready():
            if followed is not None:
                self._followed[request.request_id] = followed
            ready.append((request, refusal))
        return ready

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """End requests whose grammar is not ready yet; others are the scheduler's to end."""
        return [EngineOutput(found, [], finish_reason="abort") for found in self._waiting.abort(request_ids)]

    def rows(self, step: SchedulerOutput) -> list[str]:
        """Ids of the requests that sample under a grammar in `step`."""
        if not self._followed:
            return []
        return [
            entry.request_id for entry in step.scheduled if entry.num_samples and entry.request_id in self._followed
        ]

    def masks(self, request_ids: Iterable[str]) -> Masks:
        """Masks of requests that still run: of the quick ones, for as long as a step may take; others come later."""
        self._step_budget = StepBudget(self._clock)
        masks = Masks({}, self._too_large(), [])
        for request_id in request_ids:
            followed = self._followed.get(request_id)
            if followed is None or request_id in masks.errors:
                continue  # the step before this one ended it
            matcher = followed.matcher
            if request_id in self._late:
                masks.late.append(request_id)
                continue
            if not matcher.has_mask and (matcher.is_slow or self._step_budget.is_used_up):
                self._make_late(request_id, followed)
                masks.late.append(request_id)
                continue
            mask = matcher.mask()
            if (error := matcher.error) is not None:
                masks.errors[request_id] = error
            else:
                masks.ready[request_id] = mask
        return masks

    def slow(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the requests whose next masks are made beside the loop, as soon as the tokens before them are known;
        `take_made` tells of them too."""
        followed = ((request_id, self._followed.get(request_id)) for request_id in request_ids)
        return [request_id for request_id, text in followed if text is not None and text.matcher.is_slow]

    def take_made(self) -> list[tuple[str, str | None]]:
        """Requests whose late masks are made by now, each with the reason why it cannot go on, or None."""
        if not self._late:
            return []
        made = [request_id for request_id, job in self._late.items() if job.is_done]
        return [(request_id, self._late.pop(request_id).matcher.error) for request_id in made]

    def take_forced(self, request_ids: Iterable[str]) -> dict[str, list[int]]:
        """The next tokens of each request, from the one about to be sampled on, as far as its grammar has one way.

        The step that `masks` began has its budget for this too.
        """
        found = {}
        for request_id in request_ids:
            followed = self._followed.get(request_id)
            if followed is not None and (token_ids := followed.matcher.take_forced(self._may_go_on)):
                found[request_id] = token_ids
        return found

    def follow(self, news: Iterable[EngineOutput]) -> None:
        """Take in the tokens that the scheduler reported; forget requests that ended."""
        if not self._followed:
            return
        for output in news:
            if output.finish_reason is not None:
                self._forget(output.request_id)
            elif (followed := self._followed.get(output.request_id)) is not None:
                if followed.matcher.is_slow:  # its siblings' masks may lock what it would follow tokens in
                    self._make_late(output.request_id, followed, output.new_token_ids)
                    continue
                followed.matcher.accept(output.new_token_ids)
                if followed.thinking is not None and followed.thinking.is_over:
                    self._forget(output.request_id)

    def close(self) -> None:
        """Let the threads end."""
        self._thread.close()
        self._waiting.close()

    def _make_late(self, request_id: str, followed: FollowedText, token_ids: Sequence[int] = ()) -> None:
        followed.job = self._late[request_id] = self._thread.begin(followed.matcher, token_ids)

    def _forget(self, request_id: str) -> None:
        self._late.pop(request_id, None)
        followed = self._followed.pop(request_id, None)
        if followed is not None and followed.job is not None:
            followed.job.is_wanted = False

    def _may_go_on(self) -> bool:
        return not self._step_budget.is_used_up

    def _has_room(self, grammar: Grammar) -> bool:
        """Whether one more text may be followed now. Alone it always may."""
        held = self._num_bytes()
        return not held or held + grammar.num_bytes() <= BYTES_FOR_NEW

    def _num_bytes(self) -> int:
        return held_bytes([*self._followed.values(), *self._waiting.begun])

    def _too_large(self) -> dict[str, str]:
        """The followed text that holds most, where all together hold too much; looked at now and then."""
        self._num_steps += 1
        if self._num_steps % STEPS_BETWEEN_LOOKS or self._num_bytes() <= MAX_BYTES:
            return {}
        largest = max(self._followed, key=lambda request_id: self._followed[request_id].num_bytes)
        return {largest: "texts that follow grammars hold too much memory, and this one holds most: make it simpler"}
