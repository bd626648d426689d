"""`RequestBook`: every request from arrival to end, and the moves between waiting, running and finished."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from atom_core.kv_cache import PagedCache
from atom_core.messages import EngineRequest, KVTransferParams, TransferResult
from atom_core.scheduler.images_at_worker import ImagesAtWorker
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.waiting_queue import WaitingQueue

# With others running, a new request leaves this part of the blocks free, for those to grow.
RESERVE_PART = 100

_key = attrgetter("key")


class RequestBook:
    """Requests by id, the waiting queue, and the running ones in order of their keys.

    Attributes:
        loading: the running requests that wait for KV, by the ids of their loads.
        num_preemptions: how often requests were preempted since the start.
        num_arrivals: requests added since the start.
        num_forced_tokens: output tokens that were not sampled, since the start.
        images_at_worker: the pictures of the requests that the worker knows.
        num_not_finite: requests that ended because their logits or hidden states were not finite, since the start.
    """

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self.by_id: dict[str, Request] = {}
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.loading: dict[int, Request] = {}
        self.images_at_worker = ImagesAtWorker()
        self.num_preemptions = 0
        self.num_arrivals = 0
        self.num_forced_tokens = 0
        self.num_not_finite = 0
        self._dropped_ids: list[str] = []

    def add(self, engine_request: EngineRequest, *, rank: float, arrival: float, max_tokens: int) -> None:
        """A new request waits; siblings after the first wait for the first one's prompt.

        Args:
            rank: its place among the requests of its tenant; lower goes first.
        """
        self.num_arrivals += 1
        request = Request(
            engine_request,
            # What one tenant holds more urgent takes no blocks from another.
            key=(arrival if engine_request.tenant else rank, self.num_arrivals),
            turn=(rank, self.num_arrivals),
            tenant=self.waiting.tenant(engine_request.tenant),
            arrival=arrival,
            max_tokens=max_tokens,
            block_table=self.cache.make_table(engine_request.prefix_salt, engine_request.images),
        )
        self.by_id[request.request_id] = request
        source = engine_request.sampling_params.kv_transfer_params
        if source is not None and source.do_remote_prefill and engine_request.sample_index == 0:
            self.cache.expect(request.block_table, request.token_ids, source)
        parent_id = engine_request.parent_id
        if parent_id is None or not self._shares_prompt(request):
            self.waiting.push(request)
        elif engine_request.sample_index == 0:
            self.waiting.lead(parent_id)
            self.waiting.push(request)
        elif self.waiting.is_led(parent_id):
            self.waiting.hold(parent_id, request)
        else:
            self.waiting.push(request)

    def admit(self, request: Request, *, prefers_followed: bool = False) -> bool:
        """Let the head of the queue run, or wait for KV, if there are blocks for all its tokens.

        Args:
            prefers_followed: see `PagedCache.admit`.
        """
        num_cached_tokens = self.cache.admit(
            request.block_table,
            request.token_ids,
            use_prefix=not request.needs_whole_prompt,
            max_tokens=request.max_computed_tokens,
            reserve=self.cache.config.num_blocks // RESERVE_PART if self.running else 0,
            count=not request.has_run,
            prefers_followed=prefers_followed,
        )
        if num_cached_tokens is None:
            return False
        self.waiting.pop()
        load_id = request.block_table.load_id
        if load_id is None:
            self._begin(request, num_cached_tokens)
        else:
            request.wait_for_kv(num_cached_tokens)
            self.loading[load_id] = request
        insort(self.running, request, key=_key)
        return True

    def take_results(self, results: Sequence[TransferResult]) -> None:
        """Requests whose blocks are loaded run; those whose load failed go back to where they waited."""
        for load_id, is_right in self.cache.take_results(results):
            request = self.loading.pop(load_id, None)
            if request is None:
                continue  # it was preempted, or has ended
            if is_right:
                num_tokens, count = request.num_computed_tokens, not request.has_run
                self.cache.finish_load(request.block_table, request.token_ids, num_tokens, count=count)
                self.cache.leave_peer(request.block_table, has_loaded=True)
                self._begin(request, num_tokens)
            else:
                request.block_table.load_id = request.block_table.at_peer = None
                self._stop_running(request)
                request.leave(RequestStatus.WAITING)
                self.waiting.push(request)

    def preempt(self, request: Request) -> None:
        """A running request gives up its blocks and waits again, in its old place."""
        self._stop_running(request)
        request.leave(RequestStatus.WAITING)
        self.waiting.push(request)
        self.num_preemptions += 1

    def suspend(self, request: Request) -> None:
        """A running request gives up its blocks, and waits outside the queue (see `WaitingQueue.set_aside`)."""
        self._stop_running(request)
        request.leave(RequestStatus.WAITING)
        self.waiting.set_aside(request)

    def finish(self, request: Request) -> None:
        """A waiting or running request ends."""
        del self.by_id[request.request_id]
        was_waiting = request.status is RequestStatus.WAITING
        if not was_waiting:
            self._stop_running(request)
        self.cache.leave_peer(request.block_table)
        request.leave(RequestStatus.FINISHED)
        if was_waiting:
            self.waiting.discard()
        self.waiting.forget(request)
        self.release_siblings(request)

    def keep_for_peer(self, request: Request) -> KVTransferParams | None:
        """What another engine needs to go on from the prompt of a request that is about to end."""
        if not request.is_for_peer:
            return None
        return self.cache.keep_for_peer(request.block_table, request.token_ids[: request.num_prompt_tokens])

    def release_siblings(self, request: Request) -> None:
        """Siblings that wait for this request's prompt wait no longer."""
        engine_request = request.engine_request
        if engine_request.parent_id is not None and engine_request.sample_index == 0:
            self.waiting.release_siblings(engine_request.parent_id)

    def take_dropped_ids(self) -> list[str]:
        """Requests that the worker is to forget, told once."""
        dropped_ids, self._dropped_ids = self._dropped_ids, []
        return dropped_ids

    def _begin(self, request: Request, num_cached_tokens: int) -> None:
        if not request.has_run:
            request.tenant.pay_prompt(request.num_prompt_tokens - num_cached_tokens)
        self.cache.leave_peer(request.block_table)
        request.admit(num_cached_tokens)

    def _stop_running(self, request: Request) -> None:
        if request.block_table.load_id is not None:
            del self.loading[request.block_table.load_id]
        del self.running[bisect_left(self.running, request.key, key=_key)]
        self.cache.release(request.block_table, request.last_step_id if request.num_steps_in_flight else None)
        if request.num_tokens_at_worker:
            self._dropped_ids.append(request.request_id)
            self.images_at_worker.drop(request.images)

    def _shares_prompt(self, request: Request) -> bool:
        cache = self.cache.config
        return (
            cache.enable_prefix_caching
            and request.num_prompt_tokens > cache.block_size
            and not request.needs_whole_prompt
        )
