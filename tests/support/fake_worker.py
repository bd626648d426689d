"""A worker without a model: it "computes" through a simulated paged cache, so that a wrong block gives wrong tokens.

In each group of layers the value written for a token depends on the values read from the slots before it that the
group's window shows (of a group without a window: from the slot before it), and a sampled token on all the values that
are visible after it. What comes out equals `tokens_alone` only if every slot held what it should at every read. Groups
share the blocks of one pool, so a block in two places at once gives wrong tokens too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    ModelOutput,
    RequestStepOutput,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)
from atom_core.scheduler import Scheduler
from atom_kernels.protocols import Pages

if TYPE_CHECKING:
    from fake_draft_cache import FakeDraftCache
    from fake_elsewhere import FakeElsewhere
    from fake_states import FakeStates

VOCAB_SIZE = 13


def pages(*windows: int | None) -> tuple[Pages, ...]:
    """Groups of these windows."""
    return tuple(map(Pages, windows))


@dataclass(eq=False)
class WorkerState:
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    stop_token_ids: frozenset[int]
    sample_index: int
    tables: list[list[int]]
    drafts: tuple[int, ...] = ()
    num_rejected: int = 0


class FakeWorker:
    """Runs steps in order. `report` says which results the scheduler has seen: until then no other request may write
    the blocks that the step read or wrote, nor read those that it wrote. Where samples are drawn in another stage it
    has those tokens alone that it is told."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        *,
        keeps_samples: bool = True,
    ) -> None:
        self.block_size = block_size
        self.keeps_samples = keeps_samples
        self.windows = tuple(windows)
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.states: dict[str, WorkerState] = {}
        self.unreported: deque[tuple[int, Touched]] = deque()
        self.num_computed = 0
        self.drafts: FakeDraftCache | None = None
        self.states_in_slots: FakeStates | None = None
        self.elsewhere: FakeElsewhere | None = None

    def run(self, step: SchedulerOutput) -> ModelOutput:
        ended = () if self.elsewhere is None else self.elsewhere.run(step.transfers, self)
        for request_id in step.dropped_request_ids:
            del self.states[request_id]
        for new in step.new_requests:
            assert new.request_id not in self.states
            self.states[new.request_id] = WorkerState(
                token_ids=list(new.token_ids),
                num_prompt_tokens=new.num_prompt_tokens,
                sampling_params=new.sampling_params,
                stop_token_ids=frozenset(new.eos_token_ids) | frozenset(new.sampling_params.stop_token_ids or ()),
                sample_index=new.sample_index,
                tables=[[] for _ in range(len(self.windows) + (self.states_in_slots is not None))],
            )
        touched = Touched()
        self.unreported.append((step.step_id, touched))
        results = []
        if self.states_in_slots is not None:
            self.states_in_slots.copy(step.copies_before)
        for scheduled in step.scheduled:
            state = self.states[scheduled.request_id]
            entry = settled(scheduled, state)
            for table, block_ids in zip(state.tables, entry.new_block_ids, strict=bool(entry.new_block_ids)):
                table += block_ids
            end = entry.num_computed_tokens + entry.num_new_tokens
            assert entry.num_new_tokens > 0
            if entry.draft_token_ids:
                assert end - len(entry.draft_token_ids) == len(state.token_ids)
                state.token_ids += entry.draft_token_ids
            elif entry.num_samples > 1:
                assert end - len(state.token_ids) == entry.num_samples - 1 <= len(state.drafts)
                state.token_ids += state.drafts[: entry.num_samples - 1]
            assert end <= len(state.token_ids)
            # The last draft is computed by nobody here.
            self._check_blocks(state, touched, entry.num_computed_tokens, end + max(entry.num_next_drafts - 1, 0))
            for position in range(entry.num_computed_tokens, end):
                for group in range(len(self.windows)):
                    self._write(state, group, position)
            if self.states_in_slots is not None:
                self.states_in_slots.run(entry, state)
            result = self._result(entry, state, end)
            if self.drafts is not None and step.is_followed:
                drafts = self.drafts.run(entry, state, len(result.token_ids))
                result = msgspec.structs.replace(result, next_draft_token_ids=drafts)
                state.drafts = drafts
            else:
                assert not entry.num_next_drafts, "drafts are asked for of nobody"
                state.drafts = ()
            results.append(result)
        if self.states_in_slots is not None:
            self.states_in_slots.copy(step.copies_behind)
        self.num_computed += step.num_tokens
        return ModelOutput(step_id=step.step_id, requests=results, transfers=ended)

    def report(self, step_id: int) -> None:
        assert self.unreported.popleft()[0] == step_id

    def _check_blocks(self, state: WorkerState, touched: Touched, first: int, end: int) -> None:
        visible: list[int] = []
        last = -(-end // self.block_size)
        for table, window in zip(state.tables, self.windows, strict=False):
            assert last <= len(table), "tokens without blocks"
            reads = table[visible_from(first, window) // self.block_size : last]
            writes = table[first // self.block_size : last]
            for _, others in self.unreported:
                others.check(state, reads, writes)
            touched.reads.update((block_id, state) for block_id in reads)
            touched.writes.update((block_id, state) for block_id in writes)
            visible += reads
        assert len(set(visible)) == len(visible), "a block is in two places"

    def _write(self, state: WorkerState, group: int, position: int) -> None:
        window = self.windows[group]
        first = max(position - 1, 0) if window is None else visible_from(position, window)
        before = [self._read(state, group, earlier) for earlier in range(first, position)]
        self.slots[self._slot(state, group, position)] = value_of(before, state.token_ids[position])

    def _read(self, state: WorkerState, group: int, position: int) -> int:
        value = self.slots[self._slot(state, group, position)]
        assert value is not None, "a slot was read before it was written"
        return value

    def _slot(self, state: WorkerState, group: int, position: int) -> int:
        block_id = state.tables[group][position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def _result(self, entry: ScheduledRequest, state: WorkerState, end: int) -> RequestStepOutput:
        params, first = state.sampling_params, entry.num_computed_tokens
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            last = min(end, state.num_prompt_tokens - 1)
            values = [self._read(state, 0, position) for position in range(first, last)]
            prompt_logprobs = [fake_logprob(v, state.token_ids[first + i + 1]) for i, v in enumerate(values)]
        if not entry.num_samples:
            return RequestStepOutput(request_id=entry.request_id, token_ids=[], prompt_logprobs=prompt_logprobs)
        assert end == len(state.token_ids)
        token_ids: list[int] = []
        for num_tokens in range(end - entry.num_samples + 1, end + 1):
            token_ids.append(self._sample(state, num_tokens))
            if token_ids[-1:] != state.token_ids[num_tokens : num_tokens + 1]:
                break
        start = end - entry.num_samples + 1
        state.token_ids[start:] = token_ids if self.keeps_samples else token_ids[:-1]
        state.num_rejected = entry.num_samples - len(token_ids)
        values = [self._read(state, 0, start + place - 1) for place in range(len(token_ids))]
        logprobs = [fake_logprob(value, token_id) for value, token_id in zip(values, token_ids, strict=True)]
        return RequestStepOutput(
            request_id=entry.request_id,
            token_ids=token_ids,
            logprobs=None if params.logprobs is None else logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _sample(self, state: WorkerState, num_tokens: int) -> int:
        """The token after the first `num_tokens`."""
        values = [
            self._read(state, group, position)
            for group, window in enumerate(self.windows)
            for position in range(visible_from(num_tokens - 1, window), num_tokens)
        ]
        masked = num_tokens - state.num_prompt_tokens < state.sampling_params.min_tokens
        return sample(values, state.sample_index, state.stop_token_ids if masked else frozenset())


def settled(entry: ScheduledRequest, state: WorkerState) -> ScheduledRequest:
    """`entry` without the drafts that the step before rejected; only those may be taken off that it had."""
    num_rejected = state.num_rejected if entry.num_unsettled else 0
    assert num_rejected <= entry.num_unsettled
    return msgspec.structs.replace(entry, num_computed_tokens=entry.num_computed_tokens - num_rejected, num_unsettled=0)


class Touched:
    """The blocks that a step read and wrote, by request."""

    def __init__(self) -> None:
        self.reads: set[tuple[int, WorkerState]] = set()
        self.writes: set[tuple[int, WorkerState]] = set()

    def check(self, state: WorkerState, reads: list[int], writes: list[int]) -> None:
        """Another step, of `state`, comes before this one is reported."""
        for block_id, other in self.writes:
            assert other is state or block_id not in reads, f"block {block_id} is still being written for another"
        for block_id, other in self.reads:
            assert other is state or block_id not in writes, f"block {block_id} is still being read for another"


def visible_from(position: int, window: int | None) -> int:
    """The first position that the query at `position` sees."""
    return 0 if window is None else max(position - window + 1, 0)


def value_of(before: Sequence[int], token_id: int) -> int:
    """Keys and values of a token in one group, as one number, after those that it sees."""
    return hash((*(before or (0,)), token_id, 7))


def sample(values: Sequence[int], sample_index: int, forbidden: frozenset[int]) -> int:
    token_id = hash((*values, sample_index)) % VOCAB_SIZE
    while token_id in forbidden:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def fake_logprob(value: int | None, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id=token_id, logprob=-float(hash((value, token_id)) % 1000), rank=1, top=[])


def tokens_alone(request: EngineRequest, windows: Sequence[int | None] = (None,)) -> list[int]:
    """What `request` generates, by definition: no cache, no steps."""
    params = request.sampling_params
    stops = frozenset(request.eos_token_ids) | frozenset(params.stop_token_ids or ())
    values: list[list[int]] = [[] for _ in windows]
    output: list[int] = []
    token_ids = list(request.token_ids)
    while len(output) < (params.max_tokens or 0):
        for group, window in enumerate(windows):
            extend_values(values[group], token_ids, window)
        visible = [
            value
            for group, window in enumerate(windows)
            for value in values[group][visible_from(len(token_ids) - 1, window) :]
        ]
        masked = len(output) < params.min_tokens
        output.append(sample(visible, request.sample_index, stops if masked else frozenset()))
        token_ids.append(output[-1])
        if output[-1] in stops:
            break
    return output


def extend_values(values: list[int], token_ids: list[int], window: int | None) -> None:
    """Values of one group for the tokens that have none yet."""
    for position in range(len(values), len(token_ids)):
        first = max(position - 1, 0) if window is None else visible_from(position, window)
        values.append(value_of(values[first:position], token_ids[position]))


def prompt_logprobs_alone(request: EngineRequest, window: int | None = None) -> list[TokenLogprobs]:
    values: list[int] = []
    extend_values(values, request.token_ids, window)
    return [fake_logprob(value, following) for value, following in zip(values, request.token_ids[1:], strict=False)]


class Clock:
    """A device's clock: so long for each token of a step, for each draft made behind it and for the rest.

    Steps come one after the other.
    """

    def __init__(self, *, step: float, token: float, draft: float = 0.0) -> None:
        self.now, self._step, self._token, self._draft = 0.0, step, token, draft
        self._ends: deque[float] = deque()

    def __call__(self) -> float:
        return self.now

    def step(self, engine: FakeEngine) -> None:
        """Submit a step, if there is one, and report the one before it."""
        step = engine.submit()
        if step is not None:
            begin = max(self.now, self._ends[-1] if self._ends else 0.0)
            num_drafts = max(entry.num_next_drafts for entry in step.scheduled)
            self._ends.append(begin + self._step + self._token * step.num_tokens + self._draft * num_drafts)
        while len(engine.in_flight) > (0 if step is None else 1):
            self.now = self._ends.popleft()
            engine.report()

    def run(self, engine: FakeEngine) -> None:
        """Until all have finished."""
        while engine.scheduler.has_unfinished():
            self.step(engine)


class FakeEngine:
    """A scheduler and a fake worker, run `ahead` steps before results are reported; collects what comes out."""

    def __init__(
        self,
        scheduler: Scheduler,
        num_blocks: int,
        block_size: int,
        ahead: int = 0,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        self.scheduler = scheduler
        self.worker = FakeWorker(num_blocks, block_size, windows, keeps_samples=scheduler.config.num_stages == 1)
        self.ahead = ahead
        self.in_flight: deque[tuple[SchedulerOutput, ModelOutput]] = deque()
        self.steps: list[SchedulerOutput] = []
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineOutput] = {}
        self.outputs: dict[str, list[EngineOutput]] = {}

    def add(self, *requests: EngineRequest) -> None:
        for request in requests:
            self.scheduler.add_request(request)
            self.tokens[request.request_id] = []
            self.outputs[request.request_id] = []

    def abort(self, *request_ids: str) -> None:
        self._collect(self.scheduler.abort(request_ids))

    def submit(self) -> SchedulerOutput | None:
        step = self.scheduler.schedule()
        if step is not None:
            self.steps.append(step)
            self.in_flight.append((step, self.worker.run(step)))
        return step

    def report(self) -> None:
        step, output = self.in_flight.popleft()
        self.worker.report(step.step_id)
        self._collect(self.scheduler.update(step, output))

    def step(self) -> None:
        """Schedule once, then report until at most `ahead` steps are in flight (one at least where nothing can run)."""
        if self.submit() is None:
            assert self.in_flight, "nothing runs and nothing can be scheduled"
            self.report()
        while len(self.in_flight) > self.ahead:
            self.report()

    def run(self, max_steps: int = 10_000) -> None:
        """Until everything has finished and been reported."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished():
                break
            self.step()
        assert not self.scheduler.has_unfinished(), f"not finished after {max_steps} steps"
        while self.in_flight:
            self.report()

    def _collect(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.ends, "news of a request that had ended"
            self.tokens[output.request_id] += output.new_token_ids
            self.outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output
