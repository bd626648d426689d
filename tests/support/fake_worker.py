"""A worker without a model: it "computes" through a simulated paged cache, so that a wrong block gives wrong tokens.

The value written for a token depends on the value read from the slot before it, and a sampled token on the values of
all slots of its request. What comes out equals `tokens_alone` only if every slot held what it should at every read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    ModelOutput,
    RequestStepOutput,
    SamplingParams,
    SchedulerOutput,
    TokenLogprobs,
)
from atom_core.scheduler import Scheduler

VOCAB_SIZE = 13


@dataclass
class WorkerState:
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    stop_token_ids: frozenset[int]
    sample_index: int
    block_ids: list[int]


class FakeWorker:
    """Runs steps in order. `report` says which results the scheduler has seen: until then no other request may touch
    the blocks that the step wrote."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.states: dict[str, WorkerState] = {}
        self.unreported: deque[tuple[int, dict[int, WorkerState]]] = deque()
        self.num_computed = 0

    def run(self, step: SchedulerOutput) -> ModelOutput:
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
                block_ids=[],
            )
        written: dict[int, WorkerState] = {}
        results = []
        for entry in step.scheduled:
            state = self.states[entry.request_id]
            state.block_ids += entry.new_block_ids
            end = entry.num_computed_tokens + entry.num_new_tokens
            assert entry.num_new_tokens > 0
            assert end <= len(state.token_ids)
            self._check_blocks(state, written, end)
            for position in range(entry.num_computed_tokens, end):
                self._write(state, position)
                written[state.block_ids[position // self.block_size]] = state
            results.append(self._result(entry.request_id, state, entry.num_computed_tokens, end, entry.samples))
        self.unreported.append((step.step_id, written))
        self.num_computed += step.num_tokens
        return ModelOutput(step_id=step.step_id, requests=results)

    def report(self, step_id: int) -> None:
        assert self.unreported.popleft()[0] == step_id

    def _check_blocks(self, state: WorkerState, written: dict[int, WorkerState], end: int) -> None:
        assert len(set(state.block_ids)) == len(state.block_ids)
        for block_id in state.block_ids[: -(-end // self.block_size)]:
            for writers in (written, *(writers for _, writers in self.unreported)):
                assert writers.get(block_id, state) is state, f"block {block_id} is still being written for another"

    def _write(self, state: WorkerState, position: int) -> None:
        before = self.slots[self._slot(state, position - 1)] if position else 0
        self.slots[self._slot(state, position)] = value_of(before, state.token_ids[position])

    def _slot(self, state: WorkerState, position: int) -> int:
        return state.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _result(self, request_id: str, state: WorkerState, first: int, end: int, samples: bool) -> RequestStepOutput:
        values = [self.slots[self._slot(state, position)] for position in range(end)]
        params = state.sampling_params
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            last = min(end, state.num_prompt_tokens - 1)
            prompt_logprobs = [fake_logprob(values[i], state.token_ids[i + 1]) for i in range(first, last)]
        if not samples:
            return RequestStepOutput(request_id=request_id, token_ids=[], prompt_logprobs=prompt_logprobs)
        assert end == len(state.token_ids)
        masked = end - state.num_prompt_tokens < params.min_tokens
        token_id = sample(values, state.sample_index, state.stop_token_ids if masked else frozenset())
        state.token_ids.append(token_id)
        logprobs = None if params.logprobs is None else [fake_logprob(values[-1], token_id)]
        return RequestStepOutput(
            request_id=request_id, token_ids=[token_id], logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )


def value_of(before: int | None, token_id: int) -> int:
    """Keys and values of a token, as one number."""
    assert before is not None, "a slot was read before it was written"
    return hash((before, token_id, 7))


def sample(values: Sequence[int | None], sample_index: int, forbidden: frozenset[int]) -> int:
    token_id = hash((*values, sample_index)) % VOCAB_SIZE
    while token_id in forbidden:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def fake_logprob(value: int | None, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id=token_id, logprob=-float(hash((value, token_id)) % 1000), rank=1, top=[])


def tokens_alone(request: EngineRequest) -> list[int]:
    """What `request` generates, by definition: no cache, no steps."""
    params = request.sampling_params
    stops = frozenset(request.eos_token_ids) | frozenset(params.stop_token_ids or ())
    values: list[int | None] = []
    output: list[int] = []
    token_ids = list(request.token_ids)
    while len(output) < (params.max_tokens or 0):
        for token_id in token_ids[len(values) :]:
            values.append(value_of(values[-1] if values else 0, token_id))
        masked = len(output) < params.min_tokens
        output.append(sample(values, request.sample_index, stops if masked else frozenset()))
        token_ids.append(output[-1])
        if output[-1] in stops:
            break
    return output


def prompt_logprobs_alone(request: EngineRequest) -> list[TokenLogprobs]:
    value = 0
    entries = []
    for token_id, following in zip(request.token_ids, request.token_ids[1:], strict=False):
        value = value_of(value, token_id)
        entries.append(fake_logprob(value, following))
    return entries


class FakeEngine:
    """A scheduler and a fake worker, run `ahead` steps before results are reported; collects what comes out."""

    def __init__(self, scheduler: Scheduler, num_blocks: int, block_size: int, ahead: int = 0) -> None:
        self.scheduler = scheduler
        self.worker = FakeWorker(num_blocks, block_size)
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
