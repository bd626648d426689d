"""When blocks run out: who gives way, and that nothing is lost by it; siblings that share a prompt."""

from __future__ import annotations

import pytest

from atom_core.kv_cache.block_table import BlockTable
from atom_core.messages import EngineRequest, Pooling, SamplingParams, TokenLogprobs
from atom_core.scheduler.request import Request, RequestStatus
from fake_worker import prompt_logprobs_alone, tokens_alone
from scheduled_requests import make_engine, make_request


def make_siblings(count=3, num_prompt_tokens=12, **overrides):
    return [
        EngineRequest(
            request_id=f"p-{index}",
            token_ids=list(range(num_prompt_tokens)),
            sampling_params=SamplingParams(**{"max_tokens": 4} | overrides),
            parent_id="p",
            sample_index=index,
        )
        for index in range(count)
    ]


def preempted_ids(engine):
    started = [new.request_id for step in engine.steps for new in step.new_requests]
    return {request_id for request_id in started if started.count(request_id) > 1}


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_last_to_come_gives_way(ahead):
    engine = make_engine(ahead, num_blocks=8)
    requests = [make_request(name, 4, max_tokens=10) for name in "abc"]
    engine.add(*requests)
    engine.run()
    assert preempted_ids(engine) == {"c"}
    assert [engine.tokens[name] for name in "abc"] == [tokens_alone(request) for request in requests]


def test_a_request_that_lost_its_blocks_has_computed_nothing():
    request = Request(make_request("a", 6), key=(0, 0), arrival=0.0, max_tokens=4, block_table=BlockTable())
    request.admit(num_cached_tokens=4)
    assert request.num_uncomputed_tokens == 2
    request.leave(RequestStatus.WAITING)
    assert (request.num_computed_tokens, request.num_uncomputed_tokens) == (0, 6)


def test_a_worker_is_told_how_to_pool_where_a_vector_is_asked_for():
    def pooling(kind):
        asked = EngineRequest("a", [1, 2], SamplingParams(), kind=kind, pooling=Pooling("last"))
        return Request(asked, key=(0, 0), arrival=0.0, max_tokens=0, block_table=BlockTable()).for_worker(()).pooling

    assert (pooling("embed"), pooling("generate")) == (Pooling("last"), None)


def test_a_mean_of_all_hidden_states_needs_the_whole_prompt():
    def needs_all(kind, pooling):
        asked = EngineRequest("a", [1, 2], SamplingParams(), kind=kind, pooling=Pooling(pooling))
        return Request(asked, key=(0, 0), arrival=0.0, max_tokens=0, block_table=BlockTable()).needs_whole_prompt

    assert needs_all("embed", "mean")
    assert not needs_all("embed", "last")
    assert not needs_all("generate", "mean")


def test_a_prompt_whose_logprobs_are_all_there_may_be_cached_again():
    asked = make_request("a", 4, prompt_logprobs=0)
    request = Request(asked, key=(0, 0), arrival=0.0, max_tokens=4, block_table=BlockTable())
    entries = [TokenLogprobs(token_id, -1.0, 1, []) for token_id in asked.token_ids[1:]]
    request.take_prompt_logprobs(0, entries[:2])
    assert request.needs_whole_prompt
    request.take_prompt_logprobs(2, entries[2:])
    assert not request.needs_whole_prompt


def test_the_least_urgent_gives_way():
    engine = make_engine(num_blocks=8)
    engine.add(*(make_request(name, 4, max_tokens=10, priority=priority) for name, priority in [("a", 1), ("b", 0)]))
    engine.add(make_request("c", 4, max_tokens=10))
    engine.run()
    assert preempted_ids(engine) == {"a"}


def test_the_token_in_flight_of_a_preempted_request_is_kept():
    engine = make_engine(ahead=1, num_blocks=4)
    engine.add(make_request("a", 4, max_tokens=12), make_request("b", 4, max_tokens=12))
    while engine.scheduler.stats().num_preemptions == 0:
        engine.submit()
        if len(engine.in_flight) > 1:
            known = len(engine.tokens["b"])
            engine.report()
    engine.run()
    resumed = [new for step in engine.steps for new in step.new_requests if new.request_id == "b"][1]
    assert len(resumed.token_ids) - 4 > known
    assert engine.tokens["b"] == tokens_alone(make_request("b", 4, max_tokens=12))


def test_a_preempted_request_ends_by_its_token_in_flight():
    engine = make_engine(ahead=1, num_blocks=4)
    request = make_request("b", 4, max_tokens=12)
    # The token sampled by the step during which "b" loses its blocks ends it.
    output = tokens_alone(request)
    ending = make_request("b", 4, max_tokens=12, stop_token_ids=[output[4]], min_tokens=4)
    engine.add(make_request("a", 4, max_tokens=12), ending)
    while engine.scheduler.stats().num_preemptions == 0:
        engine.submit()
        if len(engine.in_flight) > 1:
            engine.report()
    engine.run()
    assert engine.ends["b"].finish_reason == "stop"
    assert engine.tokens["b"] == tokens_alone(ending)


def test_blocks_on_their_way_back_are_waited_for():
    """With "a" about to end by length, "b" sits a step out rather than have anyone preempted."""
    engine = make_engine(ahead=1, num_blocks=2)
    engine.add(make_request("a", max_tokens=2), make_request("b", max_tokens=6))
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0
    assert engine.tokens["b"] == tokens_alone(make_request("b", max_tokens=6))


def test_a_preempted_request_does_not_come_back_before_its_token_in_flight():
    engine = make_engine(ahead=2, num_blocks=4)
    last = make_request("d", 2, max_tokens=6)
    sizes = [("a", 3, 2), ("b", 2, 6), ("c", 2, 6)]
    others = [make_request(name, count, max_tokens=max_tokens) for name, count, max_tokens in sizes]
    engine.add(*others, last)
    for _ in range(3):
        engine.submit()
    engine.report()
    assert engine.submit() is None  # "b" waits for the block of "a", "c" for that of "d", which samples in step 2
    assert engine.scheduler.stats().num_preemptions == 1
    engine.report()
    engine.abort("b", "c")
    assert engine.scheduler.stats().num_free_blocks == 1
    assert engine.submit() is None
    engine.run()
    assert engine.tokens["d"] == tokens_alone(last)


def test_a_preempted_request_finds_its_own_blocks_again():
    engine = make_engine(num_blocks=6)
    engine.add(make_request("a", 4, max_tokens=8), make_request("b", 8, max_tokens=12))
    engine.run()
    assert preempted_ids(engine) == {"b"}
    resumed = [step for step in engine.steps if "b" in [new.request_id for new in step.new_requests]][-1]
    assert [entry.num_computed_tokens for entry in resumed.scheduled if entry.request_id == "b"] == [12]
    assert engine.ends["b"].num_cached_tokens == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_prompt_logprobs_are_reported_once_across_a_preemption_in_mid_prompt(ahead):
    engine = make_engine(ahead, num_blocks=7, max_num_batched_tokens=4, enable_prefix_caching=False)
    request = make_request("b", 20, prompt_logprobs=0, max_tokens=3)
    engine.add(make_request("a", 3, max_tokens=26), request)
    engine.step()
    engine.run()
    chunks = [e.num_computed_tokens for step in engine.steps for e in step.scheduled if e.request_id == "b"]
    reports = [output.prompt_logprobs for output in engine.outputs["b"] if output.prompt_logprobs is not None]
    assert reports == [prompt_logprobs_alone(request)]
    assert chunks.count(0) == 2
    assert preempted_ids(engine) == {"b"}


def test_prompt_logprobs_that_were_reported_are_not_asked_for_again():
    engine = make_engine(num_blocks=7)
    engine.add(make_request("a", 4, max_tokens=10), make_request("b", 4, max_tokens=10))
    engine.add(make_request("c", 4, max_tokens=10, prompt_logprobs=0))
    engine.run()
    first, second = [new for step in engine.steps for new in step.new_requests if new.request_id == "c"][:2]
    assert (first.sampling_params.prompt_logprobs, second.sampling_params.prompt_logprobs) == (0, None)


def test_siblings_wait_for_the_prompt_and_then_share_its_blocks():
    engine = make_engine(max_num_batched_tokens=8)
    siblings = make_siblings()
    engine.add(*siblings)
    engine.run()
    scheduled = [{entry.request_id for entry in step.scheduled} for step in engine.steps[:3]]
    assert scheduled == [{"p-0"}, {"p-0"}, {"p-0", "p-1", "p-2"}]
    assert [engine.ends[f"p-{i}"].num_cached_tokens for i in range(3)] == [0, 8, 8]
    assert [engine.tokens[request.request_id] for request in siblings] == [
        tokens_alone(request) for request in siblings
    ]
    assert len({tuple(tokens) for tokens in engine.tokens.values()}) == 3


def test_others_do_not_wait_for_siblings():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(*make_siblings(), make_request("a"))
    assert {entry.request_id for entry in engine.submit().scheduled} == {"p-0", "a"}


@pytest.mark.parametrize("when", ["waiting", "begun"])
def test_siblings_go_on_alone_when_the_first_is_aborted(when):
    engine = make_engine(max_num_batched_tokens=8)
    siblings = make_siblings()
    engine.add(*siblings)
    if when == "begun":
        engine.step()
    engine.abort("p-0")
    engine.run()
    assert [engine.tokens[f"p-{i}"] for i in (1, 2)] == [tokens_alone(request) for request in siblings[1:]]


def test_siblings_go_on_alone_when_nothing_could_be_shared():
    for overrides in ({"enable_prefix_caching": False}, {}):
        engine = make_engine(**overrides)
        num_prompt_tokens = 12 if overrides else 4
        engine.add(*make_siblings(num_prompt_tokens=num_prompt_tokens))
        assert len(engine.submit().scheduled) == 3


def test_a_held_sibling_can_be_aborted():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(*make_siblings())
    engine.abort("p-1")
    engine.run()
    assert [engine.ends[f"p-{i}"].finish_reason for i in range(3)] == ["length", "abort", "length"]
    assert engine.scheduler.stats().num_waiting == 0


def test_siblings_without_a_first_one_run():
    engine = make_engine()
    engine.add(*make_siblings()[1:])
    engine.run()
    assert len(engine.ends) == 2
