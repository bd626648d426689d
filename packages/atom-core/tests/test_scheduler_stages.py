"""Steps for the stages of a pipeline: several in flight, of requests whose tokens are known."""

from __future__ import annotations

from collections import Counter

import pytest

from fake_worker import FakeEngine, tokens_alone
from scheduled_requests import make_engine, make_request


def make_stages(num_stages: int = 2, **overrides: object) -> FakeEngine:
    return make_engine(ahead=num_stages, num_stages=num_stages, **overrides)


def requests_of(engine: FakeEngine) -> list[list[str]]:
    """The requests of each step in flight."""
    return [[entry.request_id for entry in step.scheduled] for step, _ in engine.in_flight]


@pytest.mark.parametrize(("num_stages", "sizes"), [(2, [4, 3]), (3, [3, 3, 1]), (7, [1] * 7)])
def test_decodes_are_spread_over_as_many_steps_as_there_are_stages(num_stages: int, sizes: list[int]):
    engine = make_stages(num_stages)
    requests = [make_request(name, max_tokens=20) for name in "abcdefg"]
    engine.add(*requests)
    engine.submit()
    engine.report()
    for _ in sizes:
        engine.submit()
    assert engine.submit() is None
    in_flight = requests_of(engine)
    assert [len(names) for names in in_flight] == sizes
    assert Counter(name for names in in_flight for name in names) == Counter("abcdefg")


def test_a_request_is_in_one_step_at_a_time_while_its_tokens_are_not_known():
    engine = make_stages(max_num_batched_tokens=8)
    requests = [make_request(name, 5, max_tokens=6) for name in "abcde"]
    engine.add(*requests)
    while engine.scheduler.has_unfinished():
        engine.step()
        sampling = Counter(e.request_id for step, _ in engine.in_flight for e in step.scheduled if e.num_samples)
        assert set(sampling.values()) <= {1}
    engine.run()
    assert engine.tokens == {request.request_id: tokens_alone(request) for request in requests}


def test_a_step_tells_the_first_stage_what_was_sampled():
    engine = make_stages()
    engine.add(make_request("a", 3, max_tokens=4))
    engine.run()
    told = [step.scheduled[0].draft_token_ids for step in engine.steps]
    assert told == [(), *((token_id,) for token_id in engine.tokens["a"][:-1])]
    assert all(step.scheduled[0].num_samples == 1 for step in engine.steps)


def test_parts_of_one_prompt_follow_each_other_from_stage_to_stage():
    engine = make_stages(max_num_batched_tokens=8)
    engine.add(make_request("a", 24, max_tokens=2))
    for _ in range(3):
        engine.submit()
    assert requests_of(engine) == [["a"]] * 3
    assert engine.submit() is None
    engine.run()
    assert engine.tokens["a"] == tokens_alone(make_request("a", 24, max_tokens=2))


def test_without_async_scheduling_all_decodes_are_in_one_step():
    engine = make_engine(ahead=0, num_stages=2)
    engine.add(*(make_request(name, max_tokens=3) for name in "abcd"))
    engine.step()
    assert len(engine.submit().scheduled) == 4
    assert engine.submit() is None


def test_a_request_that_lost_its_blocks_is_told_whole_again():
    engine = make_stages(num_blocks=8, block_size=2, enable_prefix_caching=False)
    requests = [make_request(name, 3, max_tokens=9) for name in "abc"]
    engine.add(*requests)
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert engine.tokens == {request.request_id: tokens_alone(request) for request in requests}
