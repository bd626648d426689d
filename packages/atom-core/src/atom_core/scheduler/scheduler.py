"""`Scheduler`: lets every request's computed tokens catch up with its tokens, within one budget a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from atom_core.kv_cache import BlockHasher, KVCacheConfig, PagedCache
from atom_core.kv_cache.elsewhere.peers import PeerBlocks
from atom_core.kv_cache.elsewhere.protocol import BlocksElsewhere
from atom_core.kv_events.schema import KVEvent
from atom_core.messages import EngineOutput, EngineRequest, ModelOutput, RequestState, SchedulerOutput, StepStats
from atom_core.scheduler.batching import Batching
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.drafting import Drafting
from atom_core.scheduler.limits import max_output_tokens, refusal
from atom_core.scheduler.request import RequestStatus
from atom_core.scheduler.request_book import RequestBook
from atom_core.scheduler.step_ends import StepEnds
from atom_core.scheduler.step_plan import StepPlan
from atom_core.scheduler.step_results import aborted, take_result
from atom_core.scheduler.step_sizes import StepSizes
from atom_core.speculation import Speculation


class Scheduler:
    """Owns requests and blocks.

    A caller adds requests, then calls `schedule` and `update` in turns, or, with `async_scheduling`, schedules further
    steps before the former ones are reported; reports come in the order of the steps. Running decodes go first, then
    prompts by their ranks: the time of arrival, moved by the priority. The first request in that order is never
    preempted, so every request finishes once those before it have, and a later one goes before it only by as much as
    its priority is worth. Where requests name tenants, these share the engine (see `WaitingQueue`): then priorities
    order what a tenant has waiting, and requests that run are in order of arrival.

    Args:
        config: limits of steps and requests.
        cache: the numbers of the KV cache.
        clock: seconds, for `scheduler_delay_factor`, and to tell when a request first ran.
        hasher: names cached blocks; None takes the one that `cache` names.
        speculation: lets drafts follow decodes; None does not.
        elsewhere: keeps blocks that leave the cache; None forgets them.
        peers: computes prompts for others, and knows what others have computed; None is alone.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        hasher: BlockHasher | None = None,
        speculation: Speculation | None = None,
        elsewhere: BlocksElsewhere | None = None,
        peers: PeerBlocks | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        most = config.max_num_batched_tokens
        self._cache = PagedCache(cache, hasher, max_step_tokens=most, elsewhere=elsewhere, peers=peers)
        self._elsewhere, self._peers, self._book = elsewhere, peers, RequestBook(self._cache)
        self._drafting = None if speculation is None else Drafting(speculation, self._book, config, clock)
        self._in_flight: deque[StepPlan] = deque()
        self._num_steps = 0
        self._sizes = StepSizes()
        self._in_stages = config.num_stages > 1
        self._ends = StepEnds(cache, config)
        self._batching = Batching(config, self._book, self._ends, self._drafting, clock)

    def why_it_cannot_fit(self, request: EngineRequest) -> str | None:
        """Why `request` could never run, in words for people; None if it can."""
        return refusal(request, self.config, self._cache.config)

    def add_request(self, request: EngineRequest) -> None:
        """Let `request` wait for its turn.

        Raises:
            ValueError: it could never run (see `why_it_cannot_fit`), or its id is in use.
        """
        reason = self.why_it_cannot_fit(request)
        if reason is None and request.request_id in self._book.by_id:
            reason = "a request of this id has not finished yet; give each its own"
        if reason is not None:
            raise ValueError(f"request {request.request_id!r}: {reason}")
        arrival = self._clock()
        self._book.add(
            request,
            rank=self._rank(request, arrival),
            arrival=arrival,
            max_tokens=max_output_tokens(request, self.config),
        )

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """Finish requests, whether they wait, run or are in flight; unknown ids are ignored."""
        outputs = []
        for request_id in request_ids:
            request = self._book.by_id.get(request_id)
            if request is not None:
                self._book.finish(request)
                outputs.append(aborted(request))
        return outputs

    def suspend(self, request_id: str) -> None:
        """A running request gives up its blocks, and waits aside until `resume`.

        The caller leaves what its steps in flight sample out of their results.
        """
        request = self._book.by_id.get(request_id)
        if request is not None and request.status is RequestStatus.RUNNING:
            self._book.suspend(request)

    def hold(self, request_id: str) -> None:
        """A running request keeps its blocks and computes nothing until `resume`."""
        request = self._book.by_id.get(request_id)
        if request is not None and request.status is RequestStatus.RUNNING:
            request.is_held = True

    def resume(self, request_id: str) -> None:
        """A suspended or held request goes on; others, and unknown ids, are left as they are."""
        request = self._book.by_id.get(request_id)
        if request is not None:
            request.is_held = False
            self._book.waiting.take_back(request)

    def force(self, request_id: str, token_ids: list[int]) -> None:
        """The next output tokens of a request are known before they are sampled, e.g. from its grammar.

        Args:
            token_ids: the first of them is the first token whose value has not arrived. Those beyond the samples in
                flight are not sampled: the next step computes them together, and they are reported with the last of
                those samples.
        """
        request = self._book.by_id.get(request_id)
        if request is not None and request.may_be_forced:
            request.force(token_ids)

    def schedule(self) -> SchedulerOutput | None:
        """The next step; None where nothing can run now (with steps in flight: before one is reported).

        Where everybody waits for blocks that are being loaded, or peers for a prompt's, the step computes nothing.
        """
        if self._in_flight and not self._may_run_ahead():
            return None
        budget, ran_ahead = self.config.max_num_batched_tokens, bool(self._in_flight)
        step = StepPlan(
            self._num_steps,
            budget,
            self._ends,
            ran_ahead=ran_ahead,
            keeps_samples=not self._in_stages,
            image_budget=self.config.max_num_image_tokens,
        )
        partial_prefills = self._batching.append_decodes(step)
        if self._drafting is not None:
            self._drafting.append_drafts(step)
        self._batching.append_prefills(step, partial_prefills)
        if not step.rows and not self._waits_for_transfers():
            return None
        if self._drafting is not None:
            self._drafting.ask_for_drafts(step)
        self._num_steps += 1
        self._sizes.take(self.config.max_num_batched_tokens - step.budget)
        self._in_flight.append(step)
        output = step.commit(
            self._book.take_dropped_ids(),
            self._book.images_at_worker,
            copies_before=self._cache.states.take_copies(),
            copies_behind=self._keep_states(step) if self._ends.keeps_states else (),
            transfers=self._cache.take_transfers(),
        )
        if self._cache.gives_back:
            for row in step.rows:
                self._cache.trim(row.request.block_table, row.request.num_passed_tokens, step.step_id)
        return output

    def update(self, step: SchedulerOutput, output: ModelOutput) -> list[EngineOutput]:
        """Take in the results of `step`, the earliest in flight, and tell what they mean for each request.

        Raises:
            ValueError: `step` or `output` is not that of the earliest step in flight.
        """
        expected = self._in_flight[0].step_id if self._in_flight else None
        if not step.step_id == output.step_id == expected:
            raise ValueError(f"step {step.step_id} came with results of {output.step_id}; next to report is {expected}")
        plan, drafting = self._in_flight.popleft(), self._drafting
        news = []
        for row, entry, result in zip(plan.rows, step.scheduled, output.requests, strict=True):
            request = row.request
            request.num_steps_in_flight -= 1
            request.num_samples_in_flight -= entry.num_samples
            request.num_drafts_in_flight -= row.num_drafts
            request.num_tokens_in_flight -= entry.num_new_tokens
            # What was computed past an end is dropped here.
            if request.status is not RequestStatus.FINISHED:
                if drafting is not None:
                    drafting.take_result(row, result)
                engine_output = take_result(self._book, request, entry, result)
                if engine_output is not None:
                    news.append(engine_output)
                if drafting is not None and request.status is RequestStatus.FINISHED:
                    drafting.take_end(request)
        self._cache.step_reported(step.step_id)
        self._book.take_results(output.transfers)
        if drafting is not None:
            drafting.take_report(plan, output)
        return news

    def has_unfinished(self) -> bool:
        """Whether any request waits or runs. Steps may be in flight without one; they too are to be reported."""
        return bool(self._book.by_id)

    @property
    def awaits_peers(self) -> bool:
        """Whether peers are to fetch prompts, so that steps are needed though no request is there."""
        return self._cache.awaits_peers

    def take_cache_events(self) -> list[KVEvent]:
        """What became of cached blocks since the last call."""
        return self._cache.take_events()

    def forget_prefixes(self) -> None:
        """No later request finds what was cached so far."""
        self._cache.forget_prefixes()
        if self._drafting is not None:
            self._drafting.forget()

    def states(self) -> list[RequestState]:
        """Where each request stands."""
        return [request.state() for request in self._book.by_id.values()]

    def stats(self) -> StepStats:
        """Counts as they stand. Blocks are free once they are not held, cached or not."""
        return StepStats(
            num_running=len(self._book.running),
            num_waiting=len(self._book.waiting),
            num_free_blocks=self._cache.pool.num_free,
            num_blocks=self._cache.pool.num_blocks,
            num_preemptions=self._book.num_preemptions,
            prefix_cache_queries=self._cache.num_queries,
            prefix_cache_hits=self._cache.num_hits,
            num_forced_tokens=self._book.num_forced_tokens,
            num_steps_by_size=self._sizes.counts,
            num_step_tokens=self._sizes.num_tokens,
            num_not_finite=self._book.num_not_finite,
            num_waiting_for_kv=len(self._book.loading),
            offload=None if self._elsewhere is None else self._elsewhere.stats(),
            kv_transfer=None if self._peers is None else self._peers.stats(),
            **({} if self._drafting is None else self._drafting.counts()),
        )

    def _keep_states(self, step: StepPlan) -> list[tuple[int, int]]:
        """Snapshots of the states that rows of the step leave: slots from which and to which they are copied."""
        kept = (row for row in step.rows if row.end == self._ends.next_snapshot(row.request))
        copies = (self._cache.states.keep(row.request.block_table, row.end) for row in kept)
        return [copy for copy in copies if copy is not None]

    def _rank(self, request: EngineRequest, arrival: float) -> float:
        """Where a request stands. It keeps its rank, and those who come later get higher ones: so it ages."""
        if self.config.policy == "fcfs":
            return arrival
        ageing = self.config.priority_ageing
        return arrival + ageing * request.priority if ageing else request.priority

    def _waits_for_transfers(self) -> bool:
        """Whether a step is needed that has nothing to compute, and asks for the end of transfers."""
        is_waiting = self._cache.num_loading > 0 or self._cache.awaits_peers
        return is_waiting and all(plan.rows for plan in self._in_flight)

    def _may_run_ahead(self) -> bool:
        """Whether another step may be scheduled before those in flight are reported.

        The worker takes off what the last of them rejects: drafts of earlier ones have to be settled.
        """
        if not self.config.async_scheduling:
            return False
        if self._in_stages or self._drafting is None:
            return True  # in stages, who depends on a step in flight waits for it, and nobody else does
        *earlier, last = self._in_flight
        return not any(step.num_drafts for step in earlier) and self._drafting.may_run_ahead(last)
