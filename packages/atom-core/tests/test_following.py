"""A model that drafts follows no step while its drafts lose, and a request that it did not follow has no drafts."""

from __future__ import annotations

import random

import pytest

from atom_core.kv_cache import KVCacheConfig
from atom_core.kv_cache.elsewhere.offload import OffloadedBlocks
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.speculation import Candidate, Speculation, SpeculationConfig
from atom_core.speculation.costs import UNFOLLOWED
from atom_core.speculation.following import Following
from atom_core.speculation.trail import Trail
from block_accounting import check_blocks
from drafting_times import TimedDecodes
from fake_drafters import make_drafting_engine
from fake_worker import FakeEngine, tokens_alone
from scheduled_requests import make_request

PROMPT = [*range(60, 76)]  # four blocks of four tokens, of a request that is followed or not


# --- on and off ------------------------------------------------------------------------------------------------------


def decodes(num_requests: int, *, chance: float) -> TimedDecodes:
    """Requests on a device where a draft costs a tenth of a step."""
    engine = TimedDecodes(
        lambda _, num_tokens, number: 5.0 + 0.1 * num_tokens + 0.5 * number,
        lambda *_: 1.0,
        chance=chance,
        num_drafts=3,
    )
    engine.let_run(num_requests)
    return engine


def followed(engine: TimedDecodes, num_steps: int) -> list[bool]:
    return [engine._step()[0].is_followed for _ in range(num_steps)]


def turned_off(num_requests: int = 2) -> TimedDecodes:
    """An engine whose drafts have never been right, for so long that it is off."""
    engine = decodes(num_requests, chance=0.0)
    while followed(engine, 1) == [True]:
        assert engine.now < 1e5, "it never turns itself off"
    return engine


def replace_requests(engine: TimedDecodes, number: int) -> None:
    engine.scheduler.abort(engine._names)
    engine._names.clear()
    engine.let_run(number)


def test_no_step_is_followed_any_more_once_drafts_have_never_been_right():
    engine = decodes(2, chance=0.0)
    assert all(followed(engine, 500))
    followed(engine, 200)
    assert not any(followed(engine, 900))
    assert engine.speed(50).drafts == 0.0


def test_steps_are_followed_while_drafts_are_right():
    engine = decodes(2, chance=0.7)
    assert all(followed(engine, 2000))


def test_who_is_told_to_draft_always_follows_always():
    engine = TimedDecodes(lambda *_: 5.0, lambda *_: 1.0, chance=0.0, num_drafts=3, is_adaptive=False)
    engine.let_run(2)
    assert all(followed(engine, 900))


def test_requests_that_come_soon_after_it_was_turned_off_are_not_followed():
    engine = turned_off()
    replace_requests(engine, 2)
    assert not any(followed(engine, 100))


def test_a_later_request_whose_drafts_are_right_turns_it_on_again():
    engine = turned_off()
    followed(engine, 1100)
    engine.chance = 0.8
    replace_requests(engine, 1)
    assert engine.speed(200).drafts > 1.0
    assert all(followed(engine, 700))
    # Others that come now have drafts too.
    replace_requests(engine, 2)
    assert engine.speed(100).drafts > 1.0


def test_a_later_request_whose_drafts_are_wrong_is_followed_for_some_steps_alone():
    engine = turned_off()
    followed(engine, 1100)
    replace_requests(engine, 2)
    steps = followed(engine, 900)
    assert 20 < sum(steps) < 50
    assert steps == sorted(steps, reverse=True)


def test_beside_a_request_that_is_tried_those_with_a_gap_have_no_drafts():
    engine = turned_off(1)
    followed(engine, 1100)
    engine.chance = 0.8
    engine.let_run(2)
    drafts = dict.fromkeys(engine._names, 0)
    for _ in range(300):
        for entry in engine._step()[0].scheduled:
            drafts[entry.request_id] += max(entry.num_samples - 1, 0)
    old, new = drafts.values()
    assert (old, new > 200) == (0, True)


def test_what_drafts_give_is_compared_with_what_steps_take_that_nobody_follows():
    """Drafts that are right half of the time beat steps without them, not steps without a model that follows."""

    def is_on(unfollowed: float | None) -> bool:
        speculation = Speculation(SpeculationConfig(method="mtp", num_tokens=1))
        trails = [speculation.start_trail() for _ in range(2)]
        for _ in range(16):
            speculation.costs.take(2, 1.0)
            speculation.costs.take(4, 1.5, 1)
            if unfollowed is not None:
                speculation.costs.take(2, unfollowed, UNFOLLOWED)
        for _ in range(650):
            speculation.following.take_step([], is_followed=True)
            speculation.choose_next([Candidate(trail, [1], 9) for trail in trails], num_rows=2, room=9)
            for number in range(1, 3):
                speculation.costs.take(2 * number, 0.5 + number / 2, number - 1)
            if unfollowed is not None:
                speculation.costs.take(2, unfollowed, UNFOLLOWED)
        return speculation.following.is_on

    assert [is_on(None), is_on(0.95), is_on(0.8)] == [True, True, False]


def test_what_the_request_that_is_tried_promises_is_taken_for_all():
    """Drafts of one request in 16 do not pay for a longer step, and those of all do."""
    speculation = Speculation(SpeculationConfig(method="mtp", num_tokens=1))
    for _ in range(16):
        speculation.costs.take(16, 1.0)
        speculation.costs.take(17, 1.3, 1)
        speculation.costs.take(32, 1.3, 1)
    trail = speculation.start_trail()
    for _ in range(600):
        speculation.following.take_step([], is_followed=True)
    speculation.following.try_with(trail)
    chosen = speculation.choose_next([Candidate(trail, [1], 9)], num_rows=16, room=99)
    assert (speculation.following.is_on, chosen.number) == (True, 0)


def test_steps_that_are_not_followed_are_measured_by_themselves():
    engine = turned_off()
    drafting = engine.scheduler._drafting
    assert drafting is not None
    followed(engine, 20)
    assert list(drafting._speculation.costs._measured.get(UNFOLLOWED, {})) == [2]


def test_steps_that_pay_now_and_then_keep_it_on():
    following = Following()
    for step in range(5000):
        following.take_step([], is_followed=True)
        if step % 8 == 0:
            following.pay()
    assert following.is_on
    following.pay()
    for _ in range(599):
        following.take_step([], is_followed=True)
    assert following.is_on
    following.take_step([], is_followed=True)
    assert not following.is_on


def test_steps_that_are_not_followed_anyway_do_not_turn_it_off():
    following = Following()
    for _ in range(5000):
        following.take_step([], is_followed=False)
    assert following.is_on


def test_a_trial_counts_steps_behind_the_prompt_alone_and_what_follows_it_has_to_pay_soon():
    following, tried, other = Following(), Trail(), Trail()
    for _ in range(600):
        following.take_step([], is_followed=True)
    assert not following.is_trial_due
    for _ in range(1024):
        following.take_step([], is_followed=False)
    assert following.is_trial_due
    following.try_with(tried)
    assert not following.is_trial_due
    for _ in range(500):
        following.take_step([other], is_followed=True)
    assert (following.is_for(tried), following.is_for(other), following.is_for(None)) == (True, False, False)
    following.pay()
    assert following.is_for(other)
    for _ in range(64):
        following.take_step([other], is_followed=True)
    assert not following.is_on


# --- gaps ------------------------------------------------------------------------------------------------------------


def make_engine(**options) -> FakeEngine:
    """Drafts are always right; the fake worker notices where one is made by what was not followed."""
    return make_drafting_engine("model knowing", **{"mistakes": 0.0, "num_blocks": 256, "max_model_len": 400} | options)


def let_follow(engine: FakeEngine, is_on: bool) -> None:
    drafting = engine.scheduler._drafting
    assert drafting is not None
    drafting._speculation.following.is_on = is_on
    drafting._speculation.following._steps_to_trial = 1 << 30


def run(engine: FakeEngine, name: str, token_ids: list[int], *, is_on: bool, max_tokens: int = 9) -> tuple[int, int]:
    """How many tokens of the prompt were cached, and how many drafts there were; what came is right."""
    let_follow(engine, is_on)
    before = engine.scheduler.stats().num_draft_tokens
    request = EngineRequest(name, token_ids, SamplingParams(max_tokens=max_tokens))
    engine.add(request)
    engine.run()
    assert engine.tokens[name] == tokens_alone(request)
    stats = engine.scheduler.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    return engine.ends[name].num_cached_tokens, stats.num_draft_tokens - before


def test_while_it_is_off_all_that_is_cached_is_found():
    engine = make_engine()
    assert run(engine, "a", [*PROMPT, 1], is_on=False) == (0, 0)
    assert run(engine, "b", [*PROMPT, 1, 2], is_on=False) == (16, 0)


def test_a_request_without_a_gap_finds_what_was_followed_and_has_drafts():
    engine = make_engine()
    expected = run(engine, "a", [*PROMPT, 1], is_on=True)
    assert expected[1] > 4
    assert run(engine, "b", [*PROMPT, 1], is_on=True) == (16, expected[1])


def test_cached_blocks_that_were_not_followed_are_computed_again_and_serve_both_models_then():
    engine = make_engine()
    _, num_drafts = run(make_engine(), "a", [*PROMPT, 1], is_on=True)
    run(engine, "a", [*PROMPT, 1], is_on=False)
    assert run(engine, "b", [*PROMPT, 1], is_on=True) == (0, num_drafts)
    assert run(engine, "c", [*PROMPT, 1], is_on=True) == (16, num_drafts)
    # And nobody who would have found them before finds fewer.
    assert run(engine, "d", [*PROMPT, 1], is_on=False) == (16, 0)
    check_blocks(engine.scheduler)


def test_behind_a_part_that_was_followed_only_the_rest_is_computed_again():
    engine = make_engine()
    run(engine, "a", PROMPT[:9], is_on=True, max_tokens=1)
    assert run(engine, "b", [*PROMPT, 1], is_on=False) == (8, 0)
    assert run(engine, "c", [*PROMPT, 1], is_on=True)[0] == 8


def test_more_than_a_step_can_compute_again_is_found_and_the_request_goes_without_drafts():
    engine = make_engine(max_num_batched_tokens=12)
    run(engine, "a", [*PROMPT, 1], is_on=False)
    assert run(engine, "b", [*PROMPT, 1], is_on=True) == (16, 0)
    assert run(engine, "c", [*PROMPT[:12], 1], is_on=True)[1] > 4


def test_a_block_of_a_request_with_a_gap_is_not_taken_for_one_that_was_followed():
    """It runs on while others are followed, so that the model computes tokens behind its gap."""
    engine = make_engine(max_num_batched_tokens=12)
    let_follow(engine, False)
    engine.add(make_request("a", token_ids=[*PROMPT, 1], max_tokens=30))
    for _ in range(4):
        engine.step()
    let_follow(engine, True)
    engine.add(make_request("b", 3, max_tokens=30))
    engine.run()
    rows = [entry for step in engine.steps for entry in step.scheduled]
    assert not any(entry.num_next_drafts for entry in rows if entry.request_id == "a")
    longer = [*PROMPT, 1, *engine.tokens["a"]]
    assert run(engine, "c", longer, is_on=True)[1] == 0


def test_a_request_that_ran_while_it_was_off_has_no_drafts_any_more():
    engine = make_engine()
    engine.add(make_request("a", max_tokens=60))
    for _ in range(3):
        engine.step()
    let_follow(engine, False)
    for _ in range(3):
        engine.step()
    let_follow(engine, True)
    begun = len(engine.steps)
    engine.run()
    assert engine.tokens["a"] == tokens_alone(make_request("a", max_tokens=60))
    late = engine.steps[begun:]
    assert len(late) > 30
    assert not any(step.is_followed or step.scheduled[0].num_next_drafts for step in late)


def test_drafts_that_were_made_are_verified_in_a_step_that_is_followed():
    engine = make_engine()
    engine.add(make_request("a", max_tokens=60))
    engine.step()
    let_follow(engine, False)
    step = engine.submit()
    assert step is not None
    assert (step.scheduled[0].num_samples, step.is_followed) == (4, True)


def test_a_preempted_request_has_drafts_again_when_its_tokens_are_computed_anew():
    engine = make_engine()
    let_follow(engine, False)
    engine.add(make_request("a", 9, max_tokens=60))
    for _ in range(5):
        engine.step()
    let_follow(engine, True)
    engine.scheduler.suspend("a")
    while engine.in_flight:
        engine.report()
    engine.scheduler.resume("a")
    begun = len(engine.steps)
    engine.run()
    assert engine.tokens["a"] == tokens_alone(make_request("a", 9, max_tokens=60))
    assert sum(entry.num_next_drafts for step in engine.steps[begun:] for entry in step.scheduled) > 20


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("windows", [(None,), (None, 5)])
def test_turned_on_and_off_at_any_moment_no_token_changes_and_no_draft_is_made_by_what_was_not_followed(seed, windows):
    """With chunks, prefix hits, preemptions, aborts, and drafts of which some are wrong."""
    chooser = random.Random(seed)
    engine = make_engine(num_blocks=20, max_num_batched_tokens=12, mistakes=0.3, windows=windows, ahead=seed % 3)
    requests = []
    for number in range(60):
        prompt = [*PROMPT[: chooser.choice([3, 8, 9, 13, 16])], *([number] if chooser.random() < 0.3 else [])]
        request = EngineRequest(f"r{number}", prompt, SamplingParams(max_tokens=chooser.randint(1, 20)))
        requests.append(request)
        engine.add(request)
        for _ in range(chooser.randint(1, 6)):
            let_follow(engine, chooser.random() < 0.7)
            engine.submit()
            while len(engine.in_flight) > chooser.randint(0, engine.ahead):
                engine.report()
            check_blocks(engine.scheduler)
        if chooser.random() < 0.1:
            engine.abort(request.request_id)
    engine.run()
    for request in requests:
        got = engine.tokens[request.request_id]
        is_aborted = engine.ends[request.request_id].finish_reason == "abort"
        assert got == tokens_alone(request, windows)[: len(got) if is_aborted else None]
    stats = engine.scheduler.stats()
    assert stats.num_accepted_tokens > 20
    assert stats.num_free_blocks == stats.num_blocks
    assert {step.is_followed for step in engine.steps} == {True, False}


# --- blocks elsewhere ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_block_that_comes_back_is_followed_if_it_was_when_it_left(is_followed):
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64),
        KVCacheConfig(num_blocks=8, block_size=4, prefix_hash="sha256"),
        elsewhere=OffloadedBlocks(32),
    )
    cache = scheduler._cache

    def admit(token_ids: list[int]):
        table = cache.make_table("")
        options = {"use_prefix": True, "max_tokens": len(token_ids), "reserve": 0, "count": True}
        return table, cache.admit(table, token_ids, **options)

    table, _ = admit(PROMPT)
    if is_followed:
        table.num_followed_tokens = 16
    cache.publish(table, PROMPT, 16)
    cache.release(table)
    others, _ = admit([7] * 32)
    cache.release(others)
    back, num_found = admit([*PROMPT, 1])
    assert (num_found, back.load_id is not None) == (16, True)
    assert back.num_followed_tokens == (16 if is_followed else 0)
    cache.finish_load(back, [*PROMPT, 1], 16, count=True)
    again, _ = admit([*PROMPT, 1])
    assert again.num_followed_tokens == back.num_followed_tokens
