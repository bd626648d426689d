"""Whatever happens in whatever order: the tokens of each request alone, no block leaked, nobody starved."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import blocks_of_request
from block_accounting import check_blocks
from fake_drafters import let_draft, speculation_of
from fake_worker import FakeEngine, pages, prompt_logprobs_alone, tokens_alone

HASHERS = {
    "xxhash64": None,
    "all equal": lambda prefix, data: b"same",
    "two values": lambda prefix, data: bytes([sum(prefix + data) % 2]),
}

# Few distinct tokens and lengths, so that prompts often begin alike.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@st.composite
def sampling(draw):
    max_tokens = draw(st.integers(1, 12))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        stop_token_ids=draw(st.sampled_from([None, [3], [1, 4]])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        logprobs=draw(st.sampled_from([None, 0])),
    )


# The windows of the groups of layers; most often one group that sees everything.
WINDOWS = ((None,), (None,), (None, 5), (3,), (7, 2), (4, None, 4), (None, 1), (None, None))


DRAFTERS = ("none", "none", "random", "knowing", "model random", "model knowing")


@st.composite
def engines(draw):
    block_size = draw(st.integers(1, 4))
    windows = draw(st.sampled_from(WINDOWS))
    max_num_batched_tokens = draw(st.integers(1, 24))
    least = blocks_of_request(pages(*windows), 25, block_size, max_num_batched_tokens)
    num_blocks = draw(st.integers(least, max(least, len(windows) * 64 // block_size)))
    ahead, drafter = draw(st.integers(0, 3)), draw(st.sampled_from(DRAFTERS))
    # Draft models have no stages.
    num_stages = 1 if drafter.startswith("model") else draw(st.sampled_from([1, 1, 2, 3]))
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=draw(st.integers(1, 6)),
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=26,
            long_prefill_share=draw(st.sampled_from([0.25, 0.5, 1.0])),
            async_scheduling=ahead > 0,
            num_stages=num_stages,
        ),
        KVCacheConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=draw(st.booleans()),
            groups=pages(*windows),
            names_cover_next=drafter.startswith("model"),
        ),
        hasher=HASHERS[draw(st.sampled_from(sorted(HASHERS)))],
        speculation=speculation_of(drafter, draw(st.integers(1, 5)), windows),
    )
    return let_draft(FakeEngine(scheduler, num_blocks, block_size, ahead, windows), drafter)


def check_output(engine: FakeEngine, request: EngineRequest) -> None:
    windows = engine.worker.windows
    expected = tokens_alone(request, windows)
    got = engine.tokens[request.request_id]
    end = engine.ends[request.request_id]
    if end.finish_reason == "abort":
        assert got == expected[: len(got)]
        return
    params = request.sampling_params
    assert got == expected
    stops = set(request.eos_token_ids) | set(params.stop_token_ids or ())
    stopped = got[-1] in stops and len(got) > params.min_tokens
    assert end.finish_reason == ("stop" if stopped else "length")
    outputs = engine.outputs[request.request_id]
    if params.logprobs is not None:
        assert [entry.token_id for output in outputs for entry in output.logprobs or []] == got
    reported = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert reported == ([] if params.prompt_logprobs is None else [prompt_logprobs_alone(request, windows[0])])


def check_at_rest(engine: FakeEngine) -> None:
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert not engine.scheduler._in_flight
    check_blocks(engine.scheduler)


class AnyInterleaving(RuleBasedStateMachine):
    @initialize(engine=engines())
    def start(self, engine):
        self.engine = engine
        self.requests: dict[str, EngineRequest] = {}

    @rule(
        prompt=prompts,
        params=sampling(),
        priority=st.integers(-1, 1),
        eos=st.sampled_from([(), (0,), (2, 5)]),
        salt=st.sampled_from(["", "", "s"]),
        num_samples=st.sampled_from([1, 1, 1, 3]),
        tenant=st.sampled_from(["", "", "greedy", "modest"]),
    )
    def add(self, prompt, params, priority, eos, salt, num_samples, tenant):
        first = len(self.requests)
        for index in range(num_samples):
            request = EngineRequest(
                request_id=f"r{first + index}",
                token_ids=prompt,
                sampling_params=params,
                eos_token_ids=eos,
                priority=priority,
                cache_salt=salt,
                parent_id=f"p{first}" if num_samples > 1 else None,
                sample_index=index,
                tenant=tenant,
            )
            self.requests[request.request_id] = request
            self.engine.add(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 12))
    def force(self, data, count):
        """What a grammar would do that leaves no choice: the tokens that come are known before they are sampled."""
        request = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        if request.sampling_params.logprobs is None:
            num_known = len(self.engine.tokens[request.request_id])
            coming = tokens_alone(request, self.engine.worker.windows)[num_known:]
            self.engine.scheduler.force(request.request_id, coming[:count])

    @precondition(lambda self: len(self.engine.in_flight) <= self.engine.ahead)
    @rule()
    def submit(self):
        self.engine.submit()

    @precondition(lambda self: self.engine.in_flight)
    @rule()
    def report(self):
        self.engine.report()

    @rule(count=st.integers(1, 8))
    def run_steps(self, count):
        for _ in range(count):
            if self.engine.scheduler.has_unfinished():
                self.engine.step()

    @invariant()
    def blocks_add_up(self):
        if hasattr(self, "engine"):
            check_blocks(self.engine.scheduler)
            budget = self.engine.scheduler.config.max_num_batched_tokens
            assert all(step.num_tokens <= budget for step in self.engine.steps[-1:])
            assert self.engine.scheduler.stats().num_running <= self.engine.scheduler.config.max_num_seqs

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.run()
            check_at_rest(self.engine)
            for request in self.requests.values():
                check_output(self.engine, request)


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(
    max_examples=250, stateful_step_count=30, deadline=None, suppress_health_check=[*HealthCheck]
)


@st.composite
def batches(draw):
    return [
        EngineRequest(
            request_id=str(i),
            token_ids=draw(prompts),
            sampling_params=draw(sampling()),
            eos_token_ids=(0,),
            priority=i % 2,
        )
        for i in range(draw(st.integers(1, 8)))
    ]


@settings(max_examples=150, deadline=None)
@given(engine=engines(), batch=batches())
def test_a_batch_gives_each_request_what_it_gets_alone(engine, batch):
    engine.add(*batch)
    engine.run()
    check_at_rest(engine)
    for request in batch:
        check_output(engine, request)


@settings(max_examples=60, deadline=None)
@given(
    engine=engines(),
    prompt=prompts,
    arrivals=st.lists(prompts, min_size=1, max_size=5),
    before=st.integers(0, 3),
)
def test_nobody_waits_for_ever_behind_those_who_come_later(engine, prompt, arrivals, before):
    params = SamplingParams(max_tokens=8)
    for i in range(before):
        engine.add(EngineRequest(request_id=f"before {i}", token_ids=arrivals[0], sampling_params=params))
    engine.add(EngineRequest(request_id="patient", token_ids=prompt, sampling_params=params))
    num_steps = 0
    while "patient" not in engine.ends:
        newcomer = arrivals[num_steps % len(arrivals)]
        engine.add(EngineRequest(request_id=f"after {num_steps}", token_ids=newcomer, sampling_params=params))
        engine.step()
        num_steps += 1
        assert num_steps < 1500, "starved"


@settings(max_examples=60, deadline=None)
@given(engine=engines(), prompt=prompts, arrivals=st.lists(prompts, min_size=1, max_size=5))
def test_the_more_urgent_is_never_preempted_for_the_less_urgent(engine, prompt, arrivals):
    params = SamplingParams(max_tokens=8)
    engine.add(EngineRequest(request_id="urgent", token_ids=prompt, sampling_params=params, priority=-1))
    for i, other in enumerate(arrivals):
        engine.add(EngineRequest(request_id=str(i), token_ids=other, sampling_params=params))
    engine.run()
    assert sum(new.request_id == "urgent" for step in engine.steps for new in step.new_requests) == 1


def test_the_fake_worker_notices_a_wrong_block():
    """The key check checks: with token ids and parents not compared, equal hashes do give wrong tokens."""
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=26, async_scheduling=False)
    scheduler = Scheduler(config, KVCacheConfig(num_blocks=8, block_size=2), hasher=HASHERS["all equal"])
    prefixes = scheduler._cache._prefixes
    prefixes._known = lambda name, parent, covered: prefixes._by_hash.get(b"same")
    engine = FakeEngine(scheduler, 8, 2)
    params = SamplingParams(max_tokens=4)
    first, second = (EngineRequest(request_id=str(i), token_ids=[i, 2, 3], sampling_params=params) for i in range(2))
    engine.add(first)
    engine.run()
    engine.add(second)
    engine.run()
    assert engine.tokens["0"] == tokens_alone(first)
    assert engine.tokens["1"] != tokens_alone(second)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_crowd_in_a_small_cache_is_preempted_often_and_still_gets_its_tokens(ahead):
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16, max_model_len=40, async_scheduling=ahead > 0),
        KVCacheConfig(num_blocks=16, block_size=4),
    )
    engine = FakeEngine(scheduler, 16, 4, ahead)
    crowd = [
        EngineRequest(request_id=str(i), token_ids=[i, i % 3, 1], sampling_params=SamplingParams(max_tokens=30))
        for i in range(12)
    ]
    engine.add(*crowd)
    engine.run()
    assert scheduler.stats().num_preemptions > 5
    check_at_rest(engine)
    for request in crowd:
        check_output(engine, request)
