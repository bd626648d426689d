"""Drafts in the scheduler: how many, after whom, what is accepted of them, and what becomes of their blocks."""

from __future__ import annotations

import random

import pytest

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams, StructuredOutputParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.speculation import Draft, EachByItself, Speculation, SpeculationConfig, make_speculation
from atom_core.speculation.ngram import NgramDrafter
from block_accounting import check_blocks
from fake_drafters import KnowingDrafter, RandomDrafter
from fake_drafters import make_drafting_engine as make_engine
from fake_worker import Clock, FakeEngine, tokens_alone
from scheduled_requests import make_request


def rows(engine):
    return [
        (entry.num_new_tokens, entry.num_samples, len(entry.draft_token_ids))
        for step in engine.steps
        for entry in step.scheduled
    ]


def test_drafts_follow_a_decode_and_each_is_sampled_after(monkeypatch):
    monkeypatch.setattr(KnowingDrafter.__init__, "__defaults__", ((None,), 0.0))
    engine = make_engine()
    engine.add(make_request(max_tokens=9))
    engine.run()
    # The prompt's step samples one token, the others four: three drafts and the one after them.
    assert rows(engine) == [(3, 1, 0), (4, 4, 3), (4, 4, 3)]
    assert engine.tokens["a"] == tokens_alone(make_request(max_tokens=9))


def test_no_draft_goes_past_the_last_token_of_a_request(monkeypatch):
    monkeypatch.setattr(KnowingDrafter.__init__, "__defaults__", ((None,), 0.0))
    engine = make_engine(num_tokens=10)
    engine.add(make_request(max_tokens=6))
    engine.run()
    assert rows(engine) == [(3, 1, 0), (5, 5, 4)]


def test_drafts_take_what_the_decodes_leave_of_a_step():
    engine = make_engine("knowing", num_tokens=5, max_num_batched_tokens=6)
    engine.add(*(make_request(name, 2, max_tokens=20) for name in "abc"))
    engine.run()
    assert max(step.num_tokens for step in engine.steps) == 6
    assert all(len(step.scheduled) == 3 for step in engine.steps[1:5])
    assert all(engine.tokens[name] == tokens_alone(make_request(name, 2, max_tokens=20)) for name in "abc")


@pytest.mark.parametrize("kind", ["random", "model random"])
def test_a_draft_preempts_nobody(kind):
    """Two requests fill the cache to the last block; without drafts neither would have to go."""
    engine = make_engine(kind, num_tokens=4, num_blocks=6)
    engine.add(*(make_request(name, 4, max_tokens=9) for name in "ab"))
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0
    assert all(engine.tokens[name] == tokens_alone(make_request(name, 4, max_tokens=9)) for name in "ab")


def test_a_request_with_a_grammar_has_no_guesses():
    engine = make_engine()
    engine.add(make_request(max_tokens=9, structured_outputs=StructuredOutputParams(regex="a*")))
    engine.run()
    assert all(num_samples == 1 for _, num_samples, _ in rows(engine))


def test_blocks_behind_a_window_stay_while_drafts_may_be_rejected():
    """A rejected draft takes the request back, and its next token sees further back than the draft did."""
    options = {"num_blocks": 36, "block_size": 1, "enable_prefix_caching": False}
    engine = make_engine("random", num_tokens=5, windows=(5,), **options)
    engine.add(*(make_request(name, max_tokens=60) for name in "abcdefgh"))
    engine.run()
    assert all(engine.tokens[name] == tokens_alone(make_request(name, max_tokens=60), (5,)) for name in "abcdefgh")


def test_a_stop_token_among_accepted_drafts_ends_a_request_and_what_follows_is_not_cached():
    plain = tokens_alone(make_request(max_tokens=40))
    for stop in set(plain):
        named: list[bytes] = []
        engine = make_engine(num_tokens=9, hasher=lambda prefix, data, named=named: named.append(data) or data)
        engine.add(make_request(max_tokens=40, stop_token_ids=[stop]))
        engine.run()
        assert engine.tokens["a"] == plain[: plain.index(stop) + 1]
        assert engine.ends["a"].stop_reason == stop
        check_blocks(engine.scheduler)
        # Blocks are named by their tokens, all of which are known.
        assert len(named) <= (3 + plain.index(stop) + 1) // 4
        assert {len(data) for data in named} <= {4 * 8}


class FadingDrafter:
    """Knows what comes as long as there are few tokens."""

    def propose(self, token_ids, num_tokens):
        if len(token_ids) < 100:
            return KnowingDrafter(mistakes=0.0).propose(token_ids, num_tokens)
        return Draft([token_ids[-1]] * num_tokens)


def make_adaptive(make_drafter, clock, *, num_tokens=3):
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=400)
    speculation = Speculation(SpeculationConfig(num_tokens=num_tokens), EachByItself(make_drafter))
    cache = KVCacheConfig(num_blocks=256, block_size=4)
    return FakeEngine(Scheduler(config, cache, clock=clock, speculation=speculation), 256, 4, 1)


def num_drafts(steps) -> int:
    return sum(len(entry.draft_token_ids) for step in steps for entry in step.scheduled)


@pytest.mark.parametrize(("token", "is_on"), [(0.0, True), (0.2, True), (50.0, False)])
def test_drafts_that_are_right_are_made_where_a_token_more_costs_little(token, is_on):
    clock = Clock(step=1.0, token=token)
    engine = make_adaptive(lambda: KnowingDrafter(mistakes=0.0), clock)
    engine.add(make_request(max_tokens=300))
    clock.run(engine)
    assert engine.tokens["a"] == tokens_alone(make_request(max_tokens=300))
    assert (len(engine.steps) < 100) == is_on
    assert (num_drafts(engine.steps[-50:]) > 0) == is_on


def test_drafts_that_are_wrong_end_and_steps_run_ahead_again():
    clock = Clock(step=1.0, token=0.2)
    engine = make_adaptive(FadingDrafter, clock)
    engine.add(make_request(max_tokens=300))
    clock.run(engine)
    assert num_drafts(engine.steps[:40]) > 60
    assert num_drafts(engine.steps[60:]) < 10
    assert engine.tokens["a"] == tokens_alone(make_request(max_tokens=300))


def test_without_drafts_to_expect_the_next_step_is_scheduled_before_the_last_is_reported():
    engine = make_adaptive(lambda: NgramDrafter(5, 5), lambda: 0.0)
    engine.add(make_request(max_tokens=20))
    assert engine.submit() is not None
    assert engine.submit() is not None
    assert len(engine.in_flight) == 2


def test_while_a_prompt_is_computed_nobody_has_drafts():
    clock = Clock(step=1.0, token=0.01)
    engine = make_adaptive(lambda: KnowingDrafter(mistakes=0.0), clock)
    engine.add(make_request("a", max_tokens=80))
    while not num_drafts(engine.steps):
        clock.step(engine)
    engine.add(make_request("b", 100, max_tokens=4))
    begun = len(engine.steps)
    while not engine.tokens["b"]:
        clock.step(engine)
    with_prompts = [step for step in engine.steps[begun:] if any(entry.request_id == "b" for entry in step.scheduled)]
    assert len(with_prompts) > 3
    assert num_drafts(with_prompts[:-1]) == 0


def test_steps_with_prompts_say_nothing_of_what_decodes_cost():
    clock = Clock(step=1.0, token=0.0)
    engine = make_adaptive(lambda: NgramDrafter(5, 5), clock)
    engine.add(make_request("a", max_tokens=40), make_request("b", 90, max_tokens=2))
    while not engine.tokens["b"]:
        clock.step(engine)
    costs = engine.scheduler._drafting._speculation.costs
    assert not any(costs.are_known(num_tokens) for num_tokens in range(1, 33))
    clock.run(engine)
    assert costs.are_known(1)
    assert costs.seconds(1) == pytest.approx(1.0)


def test_a_step_samples_no_more_tokens_than_logits_have_memory_for():
    config = SpeculationConfig(num_tokens=4)
    assert [config.max_num_samples(number) for number in (1, 8, 16, 40, 512)] == [5, 40, 80, 200, 512]
    for max_num_seqs, num_requests in ((1, 1), (20, 20), (70, 40)):
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 200}
        engine = make_engine("knowing", num_tokens=3, num_blocks=900, **limits)
        engine.add(*(make_request(f"{chr(97 + number % 9)}{number}", max_tokens=30) for number in range(num_requests)))
        engine.run()
        sampled = [sum(entry.num_samples for entry in step.scheduled) for step in engine.steps]
        allowed = SpeculationConfig(num_tokens=3).max_num_samples(max_num_seqs)
        assert num_requests < max(sampled) <= allowed


@pytest.mark.parametrize("kind", ["random", "knowing", "model random", "model knowing"])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_no_block_is_lost_over_five_hundred_requests(kind, windows):
    """Their lengths are random, the cache is too small for all, and some are aborted on the way."""
    chooser = random.Random(3)
    engine = make_engine(kind, num_blocks=40, windows=windows, max_num_batched_tokens=24)
    requests = [
        make_request(
            f"{chr(97 + chooser.randrange(4))}{number}", chooser.randint(1, 20), max_tokens=chooser.randint(1, 9)
        )
        for number in range(500)
    ]
    for request in requests:
        engine.add(request)
        engine.step()
        if chooser.random() < 0.1:
            engine.abort(request.request_id)
    engine.run()
    check_blocks(engine.scheduler)
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks
    for request in requests:
        got, expected = engine.tokens[request.request_id], tokens_alone(request, windows)
        assert got == (expected if engine.ends[request.request_id].finish_reason == "length" else expected[: len(got)])


def test_a_random_drafter_proposes_something():
    """The tests above say nothing of drafts if there are none."""
    engine = make_engine("random")
    engine.add(make_request(max_tokens=60))
    engine.run()
    assert sum(num_drafts for _, _, num_drafts in rows(engine)) > 20
    assert len(RandomDrafter().propose([], 5).token_ids) <= 5


# --- what others have generated --------------------------------------------------------------------------------------


def salted(request_id: str, salt: str, **overrides) -> EngineRequest:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return EngineRequest(request_id, [1, 2, 3], **{"sampling_params": params, "cache_salt": salt} | overrides)


def make_suffix_engine() -> FakeEngine:
    config = SpeculationConfig(method="suffix", num_tokens=8, adaptive=False)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128),
        KVCacheConfig(num_blocks=64, block_size=4),
        speculation=make_speculation(config),
    )
    return FakeEngine(scheduler, 64, 4, 1)


def test_requests_are_guessed_by_outputs_of_their_salt_and_by_no_others():
    engine = make_suffix_engine()
    numbers = []
    for request in (salted("a", "mine"), salted("b", "mine"), salted("c", "yours"), salted("d", "yours")):
        before = engine.scheduler.stats().num_accepted_tokens
        engine.add(request)
        engine.run()
        assert engine.tokens[request.request_id] == tokens_alone(request)
        numbers.append(engine.scheduler.stats().num_accepted_tokens - before)
    assert numbers[0] == numbers[2] < 5
    assert numbers[1] == numbers[3] > 12
    assert engine.scheduler.stats().num_kept_output_tokens == 4 * 21


def test_what_is_kept_of_a_request_is_what_it_generated_and_nothing_of_one_that_was_aborted():
    engine = make_suffix_engine()
    engine.add(salted("a", "mine"), salted("b", "mine", kind="embed"), salted("c", "mine"))
    engine.step()
    engine.step()
    engine.abort("c")
    engine.run()
    assert engine.scheduler.stats().num_kept_output_tokens == 21
    kept = engine.scheduler._drafting._speculation._drafters._past.of("mine").tokens
    assert list(kept) == [*engine.tokens["a"], -1]
