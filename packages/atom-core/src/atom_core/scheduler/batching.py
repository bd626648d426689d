"""`Batching`: which requests are in a step, and with how many tokens: decodes, then prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from atom_core.scheduler.admission_delay import AdmissionDelay
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.drafting import Drafting
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.request_book import RequestBook
from atom_core.scheduler.step_ends import StepEnds
from atom_core.scheduler.step_plan import StepPlan


class Batching:
    """Fills steps with the requests of `book`, as far as budget, places and blocks go.

    Args:
        config: limits of steps and requests.
        book: the requests, and the cache that they share.
        ends: where the steps of a prompt end.
        drafting: which requests a drafter follows; None without speculation.
        clock: seconds, as `Scheduler` has it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        book: RequestBook,
        ends: StepEnds,
        drafting: Drafting | None,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._book, self._ends, self._drafting, self._clock = config, book, ends, drafting, clock
        self._cache = book.cache
        self._in_stages = config.num_stages > 1
        part = 1.0 if config.whole_prompts else config.long_prefill_share
        self._share = max(ends.least, config.least_image_step, int(config.max_num_batched_tokens * part))
        factor = config.scheduler_delay_factor
        self._delay = AdmissionDelay(factor, clock) if factor else None

    def append_decodes(self, step: StepPlan) -> list[Request]:
        """Running requests with one token to compute; returns those with more, by key."""
        partial_prefills, most = [], self._most_decodes()
        for request in self._book.running.copy():
            if request.status is not RequestStatus.RUNNING or request.is_held:
                continue  # preempted for one before it, or held
            if self._in_stages and request.num_samples_in_flight:
                continue  # its next token is not known
            num_new_tokens = request.num_uncomputed_tokens
            if num_new_tokens > 1:
                partial_prefills.append(request)
            # Most decodes have room in their last block: look before the call.
            elif (
                num_new_tokens == 1
                and step.budget > 0
                and len(step.rows) < most
                and (request.num_computed_tokens < request.block_table.capacity or self._has_room(step, request, 1))
            ):
                step.add(request, 1)
        return partial_prefills

    def append_prefills(self, step: StepPlan, partial_prefills: list[Request]) -> None:
        """Prompts in order of their keys, begun or waiting, until budget, places or blocks run out."""
        waiting, running = self._book.waiting, self._book.running
        may_admit = self._delay is None or self._delay.is_over(waiting.peek(), not running)
        limit = self._share if len(partial_prefills) + len(waiting) > 1 else step.budget
        begun, num_decodes = deque(partial_prefills), len(step.rows)
        while step.budget > 0:
            head = waiting.peek() if may_admit and len(running) < self._config.max_num_seqs else None
            if begun and (head is None or begun[0].tenant is not head.tenant or begun[0].key < head.key):
                request = begun.popleft()
                if request.status is not RequestStatus.RUNNING:
                    continue  # preempted for one before it
            elif head is None:
                break
            # A preempted request comes back when its tokens in flight have arrived; until then none overtakes it.
            elif head.num_steps_in_flight == 0 and self._admit(head):
                request = head
                request.started = request.started or self._clock()
                if self._delay is not None:
                    self._delay.admitted()
                if request.status is RequestStatus.WAITING_FOR_KV:
                    continue
            else:
                may_admit = False
                continue
            num_new_tokens = step.cut(request, min(request.num_uncomputed_tokens, step.budget, limit))
            if num_new_tokens == 0:
                break  # it goes first in the next step: those after it must not take the budget that it waits for
            if self._has_room(step, request, num_new_tokens):
                step.add(request, num_new_tokens)
            else:
                may_admit = False
        if len(step.rows) > num_decodes:
            step.spread_rest()

    def _admit(self, request: Request) -> bool:
        """Let the head of the queue run, if there are blocks for all its tokens."""
        if self._drafting is None:
            return self._book.admit(request)
        is_admitted = self._book.admit(request, prefers_followed=self._drafting.is_to_be_followed(request))
        if is_admitted:
            self._drafting.take_admitted(request)
        return is_admitted

    def _most_decodes(self) -> int:
        """Decodes of a step: each stage has a step of its own, and all are to be of one size."""
        budget = self._config.max_num_batched_tokens
        if not self._in_stages or not self._config.async_scheduling:
            return budget
        # Those that their steps in flight will end are decodes too, or what is left would be cut smaller and smaller.
        running = self._book.running
        num_decodes = sum(bool(one.num_samples_in_flight) or one.num_uncomputed_tokens == 1 for one in running)
        return min(-(-num_decodes // self._config.num_stages), budget)

    def _has_room(self, step: StepPlan, request: Request, num_new_tokens: int) -> bool:
        """Get blocks for the next tokens of `request`, from the last in order if need be.

        Blocks of steps in flight come back later: then the request sits this step out.
        """
        table = request.block_table
        num_tokens = request.num_computed_tokens + num_new_tokens
        if num_tokens <= table.capacity:
            return True
        while not self._cache.grow(table, num_tokens, request.max_computed_tokens):
            num_lacking = self._cache.num_missing(table, num_tokens) - self._cache.pool.num_free
            if self._num_coming_blocks(step) >= step.num_missing_blocks + num_lacking:
                step.num_missing_blocks += num_lacking
                return False
            victim = next(other for other in reversed(self._book.running) if other.num_uncomputed_tokens > 0)
            if victim is request and num_new_tokens > 1:
                return False  # a prompt keeps what it has: those before it go on, and take its blocks if they must
            self._book.preempt(victim)
            step.discard(victim)
            if victim is request:
                return False
        return True

    def _num_coming_blocks(self, step: StepPlan) -> int:
        """Blocks that are about to return: given up already, or held by requests that their steps in flight end."""
        if step.num_ending_blocks is None:
            running = self._book.running
            ending = (other.block_table for other in running if other.num_uncomputed_tokens <= 0)
            step.num_ending_blocks = sum(table.num_held for table in ending)
        return self._cache.num_returning + step.num_ending_blocks
