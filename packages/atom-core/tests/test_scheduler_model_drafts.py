"""Drafts that a model makes behind the steps: how many are asked for, when they are waited for, and for what blocks."""

from __future__ import annotations

import random

import pytest

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams, StructuredOutputParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.speculation import NO_DRAFT, Candidate, Draft, Speculation, SpeculationConfig
from atom_core.speculation.costs import StepCosts
from block_accounting import check_blocks
from fake_drafters import make_drafting_engine
from fake_worker import Clock, tokens_alone
from scheduled_requests import make_request


def make_engine(kind="model knowing", **options):
    defaults = {"mistakes": 0.0, "num_blocks": 256, "max_model_len": 400, "clock": lambda: 0.0}
    return make_drafting_engine(kind, **defaults | options)


def rows(engine):
    return [
        (entry.num_new_tokens, max(entry.num_samples - 1, 0), entry.num_next_drafts)
        for step in engine.steps
        for entry in step.scheduled
    ]


def num_drafts(steps) -> int:
    return sum(max(entry.num_samples - 1, 0) for step in steps for entry in step.scheduled)


def test_the_drafts_that_a_step_brings_follow_the_next_decode():
    engine = make_engine()
    engine.add(make_request(max_tokens=10))
    engine.run()
    assert rows(engine) == [(3, 0, 3), (4, 3, 3), (4, 3, 0), (1, 0, 0)]
    assert engine.tokens["a"] == tokens_alone(make_request(max_tokens=10))


def test_no_draft_is_made_that_nobody_has_a_use_for():
    engine = make_engine(num_tokens=9)
    engine.add(make_request(max_tokens=6))
    engine.run()
    assert rows(engine) == [(3, 0, 4), (5, 4, 0)]


def test_right_drafts_are_accepted_all_and_wrong_ones_change_nothing():
    for kind, mistakes in (("model knowing", 0.0), ("model knowing", 0.5), ("model random", 0.0)):
        engine = make_engine(kind, mistakes=mistakes)
        engine.add(*(make_request(name, max_tokens=60) for name in "abc"))
        engine.run()
        assert all(engine.tokens[name] == tokens_alone(make_request(name, max_tokens=60)) for name in "abc")
        stats = engine.scheduler.stats()
        if kind == "model knowing" and not mistakes:
            assert stats.num_accepted_tokens == stats.num_draft_tokens > 100
            assert len(engine.steps) == 1 + 15
        else:
            assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_after_a_rejection_drafts_begin_at_the_token_that_came_instead():
    """A draft that were taken to follow another number of tokens would be right by chance only."""
    engine = make_engine(mistakes=0.3)
    engine.add(make_request(max_tokens=200))
    engine.run()
    stats = engine.scheduler.stats()
    first, second, third = stats.num_accepted_tokens_per_pos
    assert first / stats.num_drafts == pytest.approx(0.7, abs=0.13)
    assert second / first == pytest.approx(0.7, abs=0.2)
    assert third > 0


def test_a_request_with_a_grammar_is_asked_no_drafts_for():
    engine = make_engine()
    engine.add(make_request(max_tokens=9, structured_outputs=StructuredOutputParams(regex="a*")))
    engine.run()
    assert all(row[1:] == (0, 0) for row in rows(engine))


def test_the_chunks_of_a_prompt_bring_no_drafts_before_the_last():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request(num_prompt_tokens=20, max_tokens=2))
    engine.run()
    assert [row[2] for row in rows(engine)][:3] == [0, 0, 0]
    engine.add(make_request("b", num_prompt_tokens=20, max_tokens=9))
    engine.steps.clear()
    engine.run()
    assert [row[2] for row in rows(engine)][:3] == [0, 0, 3]


def test_where_no_block_is_free_fewer_drafts_are_made():
    """The prompt fills two of three blocks but for a place; the other request has the third."""
    engine = make_engine(num_tokens=8, num_blocks=3)
    engine.add(make_request("a", 3, max_tokens=2), make_request("b", 7, max_tokens=5))
    engine.submit()
    assert [entry.num_next_drafts for entry in engine.steps[0].scheduled] == [0, 2]


@pytest.mark.parametrize(("num_prompt_tokens", "num_blocks"), [(3, 1), (4, 2)])
def test_the_last_draft_needs_no_slot(num_prompt_tokens, num_blocks):
    engine = make_engine(num_tokens=2, num_blocks=9)
    engine.add(make_request("a", num_prompt_tokens, max_tokens=9))
    engine.submit()
    assert engine.scheduler.stats().num_free_blocks == 9 - num_blocks


def with_a_whole_model(num_blocks: int, *requests: EngineRequest, num_tokens: int) -> tuple[list[int], int]:
    """Drafts of each request behind the first step, and blocks that are free then."""
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128)
    asked = SpeculationConfig(method="draft_model", model="m", num_tokens=num_tokens, adaptive=False)
    cache = KVCacheConfig(num_blocks=num_blocks, block_size=4)
    scheduler = Scheduler(config, cache, speculation=Speculation(asked))
    for request in requests:
        scheduler.add_request(request)
    step = scheduler.schedule()
    assert step is not None
    return [entry.num_next_drafts for entry in step.scheduled], scheduler.stats().num_free_blocks


@pytest.mark.parametrize(
    ("num_prompt_tokens", "num_drafts", "num_blocks"), [(2, 2, 1), (3, 2, 2), (3, 1, 1), (4, 1, 2)]
)
def test_a_whole_model_has_a_slot_for_the_token_behind_the_step_too(num_prompt_tokens, num_drafts, num_blocks):
    request = make_request("a", num_prompt_tokens, max_tokens=9)
    assert with_a_whole_model(9, request, num_tokens=num_drafts) == ([num_drafts], 9 - num_blocks)


def test_where_no_block_is_free_a_whole_model_makes_one_draft_fewer_than_a_head():
    """The one place that is left takes the token behind the step."""
    requests = make_request("a", 3, max_tokens=2), make_request("b", 7, max_tokens=5)
    assert with_a_whole_model(3, *requests, num_tokens=8) == ([0, 1], 0)


def test_blocks_of_drafts_are_the_requests_own_and_go_with_it():
    chooser = random.Random(3)
    engine = make_engine("model random", num_tokens=7, num_blocks=40)
    for number in range(300):
        name = f"{chr(97 + number % 5)}{number}"
        engine.add(make_request(name, chooser.randint(1, 12), max_tokens=chooser.randint(1, 12)))
        engine.step()
        check_blocks(engine.scheduler)
        if chooser.random() < 0.2:
            engine.abort(name)
            check_blocks(engine.scheduler)
    engine.run()
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks


@pytest.mark.parametrize("num_shared", [7, 8, 9])
def test_a_prefix_serves_a_draft_only_where_the_token_after_its_blocks_is_the_same(num_shared):
    """The second prompt goes another way before, at, and after the end of the second block."""
    engine = make_engine()
    first = make_request("a", 16, max_tokens=8)
    token_ids = [*first.token_ids[:num_shared], *range(200, 208)]
    second = EngineRequest("b", token_ids, SamplingParams(max_tokens=8))
    engine.add(first)
    engine.run()
    engine.add(second)
    engine.run()
    assert engine.tokens["b"] == tokens_alone(second)
    assert engine.ends["b"].num_cached_tokens == {7: 4, 8: 4, 9: 8}[num_shared]
    stats = engine.scheduler.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_the_fake_worker_notices_draft_keys_of_another_token():
    engine = make_engine(names_cover_next=False)
    first = make_request("a", 16, max_tokens=8)
    engine.add(first)
    engine.run()
    engine.add(EngineRequest("b", [*first.token_ids[:8], *range(200, 208)], SamplingParams(max_tokens=8)))
    with pytest.raises(AssertionError, match="not true"):
        engine.run()


def test_steps_with_drafts_run_ahead_before_anybody_knows_which_are_right():
    engine = make_engine(mistakes=0.5)
    engine.add(*(make_request(name, max_tokens=60) for name in "abc"))
    engine.run()
    assert all(engine.tokens[name] == tokens_alone(make_request(name, max_tokens=60)) for name in "abc")
    unsettled = [entry.num_unsettled for step in engine.steps for entry in step.scheduled]
    # All but the first two steps follow one with drafts.
    assert unsettled[:6] == [0] * 6
    assert set(unsettled[6:15]) == {3}


@pytest.mark.parametrize("options", [{"presence_penalty": 1.0}, {"bad_words_token_ids": [[3]]}, {"min_tokens": 9}])
def test_who_samples_by_what_came_before_is_told_first_what_came(options):
    engine = make_engine()
    engine.add(make_request("a", max_tokens=20), make_request("b", max_tokens=20, **options))
    assert [engine.submit() is None for _ in range(3)] == [False, False, True]
    engine.report()
    assert engine.submit() is None
    engine.report()
    third = engine.submit()
    assert third is not None
    assert {entry.num_unsettled for entry in third.scheduled} == {0}


@pytest.mark.parametrize(("token", "draft", "is_on"), [(0.0, 0.0, True), (0.1, 0.2, True), (0.0, 3.0, False)])
def test_drafts_that_are_right_are_made_where_they_cost_little(token, draft, is_on):
    clock = Clock(step=1.0, token=token, draft=draft)
    engine = make_engine(adaptive=True, clock=clock)
    engine.add(make_request(max_tokens=300))
    clock.run(engine)
    assert engine.tokens["a"] == tokens_alone(make_request(max_tokens=300))
    assert (len(engine.steps) < 130) == is_on
    assert (num_drafts(engine.steps[-60:]) > 60) == is_on


def test_requests_whose_drafts_are_right_more_or_less_often_have_equally_many():
    """A step of two tokens takes a second, and each token more a third: the drafts of one request would pay best."""
    speculation = Speculation(SpeculationConfig(method="mtp", num_tokens=3))
    for _ in range(3):
        for number in range(4):
            for num_tokens in range(2, 9):
                speculation.costs.take(num_tokens, 1.0 + 0.3 * (num_tokens - 2), number)
    often, seldom = speculation.start_trail(), speculation.start_trail()
    for number in range(20):
        token_ids = list(range(number + 1))
        often.take(Draft((number + 1,)), token_ids)
        seldom.take(Draft((number + number % 2,)), token_ids)
    assert 0.4 < seldom.chance(0) < 0.6 < 0.95 < often.chance(0)
    candidates = [Candidate(trail, token_ids, 9) for trail in (often, seldom)]
    assert speculation.choose_next(candidates, num_rows=2, room=9).number == 1


def test_a_request_begins_with_what_the_drafts_of_others_have_been():
    """Else one whose first draft is wrong would be left without any."""
    speculation = Speculation(SpeculationConfig(method="mtp", num_tokens=3))

    def first_chance(draft: int) -> float:
        trail = speculation.start_trail()
        trail.take(Draft((draft,)), [0])
        trail.take(NO_DRAFT, [0, 1])
        return trail.chance(0)

    assert first_chance(draft=9) > 0.5
    assert all(first_chance(draft=9) >= 0 for _ in range(300))
    assert first_chance(draft=1) < 0.3
    assert all(first_chance(draft=1) > 0 for _ in range(300))
    assert first_chance(draft=9) > 0.5


def test_what_many_tokens_more_cost_is_taken_to_be_little_until_it_is_measured():
    costs = StepCosts()
    for _ in range(3):
        costs.take(32, 1.0)
    assert costs.seconds(32) == 1.0 < costs.seconds(36) < costs.seconds(128) < 1.1


def test_steps_that_make_drafts_are_measured_by_themselves():
    clock = Clock(step=1.0, token=0.0, draft=0.25)
    engine = make_engine(adaptive=True, clock=clock)
    engine.add(make_request(max_tokens=100))
    clock.run(engine)
    costs = engine.scheduler._drafting._speculation.costs
    assert costs.seconds(1) == pytest.approx(1.0)
    assert costs.seconds(4, 3) == pytest.approx(1.75)


def test_drafts_that_are_wrong_are_tried_now_and_then_and_come_back_when_they_are_right():
    clock = Clock(step=1.0, token=0.1, draft=0.1)
    engine = make_engine("model random", adaptive=True, clock=clock)
    engine.add(make_request(max_tokens=390))
    num_in_flight = set()
    while len(engine.steps) < 200:
        clock.step(engine)
        if len(engine.steps) > 100:
            num_in_flight.add(len(engine.in_flight))
    late = engine.steps[100:]
    # Now and then six steps in a row have one, to see what that costs by now; else one of 32 steps makes one.
    assert num_drafts(late) <= 12
    assert 2 <= sum(entry.num_next_drafts for step in late for entry in step.scheduled) <= 16
    assert num_in_flight == {1}
    engine.worker.drafts._guess = make_engine().worker.drafts._guess
    request = make_request("b", max_tokens=300)
    engine.abort("a")
    engine.add(request)
    clock.run(engine)
    assert num_drafts(engine.steps[-30:]) > 30
    assert engine.tokens["b"] == tokens_alone(request)


def test_while_a_prompt_is_computed_nobody_is_asked_for_drafts():
    clock = Clock(step=1.0, token=0.01)
    engine = make_engine(adaptive=True, clock=clock)
    engine.add(make_request("a", max_tokens=90))
    while not num_drafts(engine.steps):
        clock.step(engine)
    engine.add(make_request("b", 100, max_tokens=4))
    begun = len(engine.steps)
    while not engine.tokens["b"]:
        clock.step(engine)
    with_prompts = [step for step in engine.steps[begun:] if any(entry.request_id == "b" for entry in step.scheduled)]
    assert len(with_prompts) > 3
    assert not any(entry.num_next_drafts for step in with_prompts[:-2] for entry in step.scheduled)


def test_the_drafts_of_all_requests_have_room_in_the_next_step():
    engine = make_engine(num_tokens=5, max_num_batched_tokens=12)
    engine.add(*(make_request(name, 2, max_tokens=30) for name in "abcd"))
    engine.run()
    asked = [(len(step.scheduled), sum(entry.num_next_drafts for entry in step.scheduled)) for step in engine.steps]
    assert (4, 12 - 4) in asked
    assert all(number <= 12 - num_reqs for num_reqs, number in asked)
    assert max(step.num_tokens for step in engine.steps) == 12
