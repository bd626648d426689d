"""Who goes next: tenants have equal shares, requests age, and the queue has room for everybody."""

from __future__ import annotations

import pytest

from atom_core.engine.inputs.queue_limits import Load, QueueLimits
from atom_core.errors import InvalidRequestError
from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.scheduler.waiting_queue import MAX_IDLE_TENANTS
from clock import Clock
from fake_worker import FakeEngine


def make_engine(clock=None, *, num_blocks=64, **overrides):
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 128, "async_scheduling": False}
    cache = KVCacheConfig(num_blocks=num_blocks, block_size=4, enable_prefix_caching=False)
    return FakeEngine(Scheduler(SchedulerConfig(**limits | overrides), cache, clock=clock or Clock()), num_blocks, 4)


def make_request(name, *, tenant="", priority=0, num_prompt_tokens=4, max_tokens=2):
    return EngineRequest(
        request_id=name,
        token_ids=[ord(name[0])] * num_prompt_tokens,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        tenant=tenant,
        priority=priority,
    )


def order_of(engine, *requests):
    engine.add(*requests)
    engine.run()
    return list(engine.ends)


def test_a_tenant_with_many_requests_lets_another_in_after_the_one_that_runs():
    greedy = [make_request(f"g{i}", tenant="greedy") for i in range(6)]
    modest = [make_request(f"m{i}", tenant="modest") for i in range(2)]
    assert order_of(make_engine(), *greedy, *modest) == ["g0", "m0", "g1", "m1", "g2", "g3", "g4", "g5"]


def test_shares_are_of_tokens_and_not_of_requests():
    long = [make_request(f"l{i}", tenant="long", num_prompt_tokens=40) for i in range(3)]
    short = [make_request(f"s{i}", tenant="short", num_prompt_tokens=4) for i in range(9)]
    # A long one costs 40 + 2 * 2, a short one 4 + 2 * 2.
    assert order_of(make_engine(), *long, *short)[:8] == ["l0", "s0", "s1", "s2", "s3", "s4", "s5", "l1"]


def test_output_counts_twice_and_as_it_comes():
    talkative = [make_request(f"t{i}", tenant="talkative", num_prompt_tokens=1, max_tokens=20) for i in range(2)]
    terse = [make_request(f"q{i}", tenant="terse", num_prompt_tokens=20, max_tokens=1) for i in range(3)]
    # 1 + 2 * 20 against 20 + 2.
    assert order_of(make_engine(), *talkative, *terse) == ["t0", "q0", "q1", "t1", "q2"]


def test_a_pause_saves_nothing_up():
    engine = make_engine()
    engine.add(*(make_request(f"g{i}", tenant="greedy") for i in range(20)))
    for _ in range(24):
        engine.step()
    done = len(engine.ends)
    engine.add(*(make_request(f"m{i}", tenant="modest") for i in range(8)))
    engine.run()
    # The newcomer is owed nothing for the time before it came: the two take turns from here on.
    order = [name[0] for name in list(engine.ends)[done + 1 :]]
    assert order[:8].count("g") in (3, 4, 5)


def test_no_priority_takes_a_turn_from_another_tenant():
    greedy = [make_request(f"g{i}", tenant="greedy", priority=-100) for i in range(4)]
    modest = [make_request(f"m{i}", tenant="modest", priority=100) for i in range(2)]
    assert order_of(make_engine(), *greedy, *modest)[:4] == ["g0", "m0", "g1", "m1"]


def test_priorities_order_what_a_tenant_has_waiting():
    requests = [make_request(f"a{p}", tenant="a", priority=p) for p in (3, -1, 2)]
    assert order_of(make_engine(), *requests) == ["a-1", "a2", "a3"]


def test_no_priority_takes_blocks_from_another_tenant():
    engine = make_engine(num_blocks=8, max_num_seqs=2)
    engine.add(make_request("m", tenant="modest", max_tokens=20))
    engine.step()
    engine.add(make_request("g", tenant="greedy", priority=-100, max_tokens=20))
    engine.run()
    assert engine.scheduler.stats().num_preemptions
    assert sum(new.request_id == "m" for step in engine.steps for new in step.new_requests) == 1


def test_a_preempted_request_is_not_overtaken_by_another_tenant():
    engine = make_engine(num_blocks=8, max_num_seqs=2)
    engine.add(make_request("a", tenant="a", max_tokens=20), make_request("b", tenant="b", max_tokens=20))
    while not engine.scheduler.stats().num_preemptions:
        engine.step()
    engine.add(make_request("c", tenant="c", num_prompt_tokens=1, max_tokens=1))
    engine.run()
    assert [new.request_id for step in engine.steps for new in step.new_requests] == ["a", "b", "b", "c"]


@pytest.mark.parametrize(("waited", "first"), [(19, "urgent"), (21, "patient")])
def test_waiting_is_worth_priority(waited, first):
    clock = Clock()
    engine = make_engine(clock, priority_ageing=10.0)
    engine.add(make_request("running", max_tokens=4), make_request("patient", priority=2))
    engine.step()
    clock.now += waited
    engine.add(make_request("urgent"))
    engine.run()
    assert list(engine.ends)[1] == first


def test_without_ageing_the_more_urgent_always_goes_first():
    clock = Clock()
    engine = make_engine(clock, priority_ageing=0.0)
    engine.add(make_request("running", max_tokens=4), make_request("patient", priority=1))
    engine.step()
    clock.now += 1e6
    engine.add(make_request("urgent"))
    engine.run()
    assert list(engine.ends)[1] == "urgent"


def test_tenants_that_owe_nothing_are_forgotten_and_the_others_are_few():
    engine = make_engine()
    for i in range(MAX_IDLE_TENANTS + 200):
        engine.add(make_request(str(i), tenant=f"t{i}", num_prompt_tokens=1 + i // 50, max_tokens=1))
        engine.run()
    assert len(engine.scheduler._book.waiting._tenants) <= MAX_IDLE_TENANTS + 1


def test_a_tenant_is_remembered_as_long_as_it_has_a_request():
    engine = make_engine(max_num_seqs=4)
    engine.add(*(make_request(f"r{i}", tenant="t", max_tokens=1 + 3 * i) for i in range(3)))
    waiting, num_left = engine.scheduler._book.waiting, []
    while engine.scheduler.has_unfinished():
        engine.step()
        num_left.append(sum(tenant.num_requests for tenant in waiting._tenants.values()))
    assert num_left == [2, 2, 2, 1, 1, 1, 0]


def limits(samples=8, tokens=100):
    return QueueLimits(max_num_seqs=2, max_num_queued_requests=samples - 2, max_num_queued_tokens=tokens)


def load(samples, tokens=0):
    return Load(num_samples=samples, num_tokens=tokens)


@pytest.mark.parametrize(
    ("wanted", "held", "code"),
    [
        (load(8, 100), load(0), None),
        (load(9), load(0), "invalid_value"),
        (load(1, 101), load(0), "invalid_value"),
        (load(1, 1), load(7, 99), None),
        (load(1, 1), load(8, 10), "queue_full"),
        (load(1, 2), load(1, 99), "queue_full"),
    ],
)
def test_the_queue_is_limited_in_samples_and_in_tokens(wanted, held, code):
    if code is None:
        return limits().check(wanted, open_load=held, own_load=None)
    with pytest.raises(InvalidRequestError) as caught:
        limits().check(wanted, open_load=held, own_load=None)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("own", "others", "has_room"),
    [(0, 7, True), (3, 0, True), (4, 0, False), (2, 2, True), (2, 3, True), (3, 2, False), (1, 6, False)],
)
def test_a_tenant_leaves_as_much_room_as_it_takes(own, others, has_room):
    in_samples = (load(1), load(own), load(own + others))
    in_tokens = (load(1, 1), load(1, own), load(2, own + others))
    for wanted, mine, held in (in_samples, in_tokens):
        if has_room:
            limits(8, 8).check(wanted, open_load=held, own_load=mine)
            continue
        with pytest.raises(InvalidRequestError, match="left to others") as caught:
            limits(8, 8).check(wanted, open_load=held, own_load=mine)
        assert caught.value.code == "queue_full"


def test_limits_that_are_not_set_follow_from_what_can_run():
    chosen = QueueLimits.of(10, 10**6, samples=None, tokens=None)
    assert (chosen.max_num_queued_requests, chosen.max_num_queued_tokens) == (40, 4 * 10**6)
    assert QueueLimits.of(10, 16, samples=None, tokens=None).max_num_queued_tokens == 2**21
    assert QueueLimits.of(10, 16, samples=0, tokens=5) == QueueLimits(
        max_num_seqs=10, max_num_queued_requests=0, max_num_queued_tokens=5
    )
