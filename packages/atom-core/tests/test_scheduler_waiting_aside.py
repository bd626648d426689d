"""Requests that wait for something else than their turn: held ones keep their blocks, suspended ones give them up."""

from __future__ import annotations

import pytest

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, ModelOutput, RequestStepOutput, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig


def make_scheduler(**overrides):
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64, "async_scheduling": True}
    return Scheduler(SchedulerConfig(**limits | overrides), KVCacheConfig(num_blocks=16, block_size=4))


def add(scheduler, *request_ids):
    for request_id in request_ids:
        scheduler.add_request(EngineRequest(request_id, [5, 6, 7], SamplingParams(max_tokens=8, seed=0)))


def step(scheduler, void=()):
    """Schedule and report a step, in which each request that samples gets token 9 unless it is void; who was in it."""
    scheduled = scheduler.schedule()
    if scheduled is None:
        return []
    results = [
        RequestStepOutput(one.request_id, [9] if one.num_samples and one.request_id not in void else [])
        for one in scheduled.scheduled
    ]
    scheduler.update(scheduled, ModelOutput(scheduled.step_id, results))
    return [(one.request_id, one.num_new_tokens) for one in scheduled.scheduled]


def test_a_held_request_keeps_its_blocks_and_computes_nothing_until_it_is_resumed():
    scheduler = make_scheduler()
    add(scheduler, "a", "b")
    step(scheduler)
    free = scheduler.stats().num_free_blocks
    scheduler.hold("a")
    assert step(scheduler) == [("b", 1)]
    assert scheduler.stats().num_running == 2
    assert scheduler.stats().num_free_blocks >= free - 1
    scheduler.resume("a")
    assert step(scheduler) == [("a", 1), ("b", 1)]


def test_a_suspended_request_gives_up_its_blocks_and_keeps_nobody_waiting():
    scheduler = make_scheduler()
    add(scheduler, "a")
    step(scheduler)
    scheduler.suspend("a")
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (0, 1)
    assert scheduler.stats().num_free_blocks == 16
    assert step(scheduler) == []
    add(scheduler, "b")
    assert step(scheduler) == [("b", 3)]
    scheduler.resume("a")
    assert step(scheduler) == [("b", 1), ("a", 4)]
    assert scheduler.stats().num_preemptions == 0


def test_a_token_that_was_sampled_for_nothing_is_sampled_again():
    scheduler = make_scheduler()
    add(scheduler, "a")
    scheduled = scheduler.schedule()
    scheduler.suspend("a")
    nothing = ModelOutput(scheduled.step_id, [RequestStepOutput("a", [])])
    assert scheduler.update(scheduled, nothing) == []
    scheduler.resume("a")
    assert step(scheduler) == [("a", 3)]


@pytest.mark.parametrize("leave", ["suspend", "hold"])
def test_a_request_that_waits_aside_can_be_aborted(leave):
    scheduler = make_scheduler()
    add(scheduler, "a")
    step(scheduler)
    getattr(scheduler, leave)("a")
    (news,) = scheduler.abort(["a"])
    assert news.finish_reason == "abort"
    scheduler.resume("a")
    assert not scheduler.has_unfinished()
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 16)


def test_what_does_not_wait_aside_is_left_as_it_is():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, "a", "b")
    step(scheduler)
    for change in (scheduler.suspend, scheduler.hold):
        change("b")  # waits for its turn
        change("unknown")
    scheduler.resume("a")
    scheduler.resume("b")
    scheduler.resume("unknown")
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (1, 1)
    assert step(scheduler) == [("a", 1)]
