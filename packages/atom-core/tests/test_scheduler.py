"""One step at a time: who computes how many tokens, in which order, and who is let in."""

from __future__ import annotations

import pytest

from atom_core.messages import ModelOutput
from fake_worker import tokens_alone
from scheduled_requests import make_engine, make_request


def shares(step):
    return {entry.request_id: entry.num_new_tokens for entry in step.scheduled}


def test_prompts_and_decodes_share_a_step_decodes_first():
    engine = make_engine()
    engine.add(make_request("a"))
    engine.step()
    engine.add(make_request("b", 5))
    engine.step()
    assert [(entry.request_id, entry.num_new_tokens) for entry in engine.steps[-1].scheduled] == [("a", 1), ("b", 5)]


def test_a_long_prompt_is_computed_in_chunks_and_sampled_from_at_its_end():
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("a", 20, max_tokens=1))
    engine.run()
    chunks = [
        (entry.num_computed_tokens, entry.num_new_tokens, entry.num_samples)
        for step in engine.steps
        for entry in step.scheduled
    ]
    assert chunks == [(0, 8, 0), (8, 8, 0), (16, 4, 1)]


def test_a_long_prompt_takes_its_share_while_another_waits():
    engine = make_engine(max_num_batched_tokens=16, long_prefill_share=0.25)
    engine.add(make_request("a", 40), make_request("b", 40), make_request("c", 40))
    assert shares(engine.submit()) == {"a": 8, "b": 4, "c": 4}


def test_a_long_prompt_alone_takes_the_whole_step():
    engine = make_engine(max_num_batched_tokens=16, long_prefill_share=0.25)
    engine.add(make_request("a", 40))
    assert shares(engine.submit()) == {"a": 16}


def test_a_short_prompt_does_not_wait_for_a_long_one():
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(make_request("a", 60), make_request("b", 3))
    assert shares(engine.submit()) == {"a": 13, "b": 3}


def test_no_more_requests_run_than_allowed():
    engine = make_engine(max_num_seqs=2)
    engine.add(*(make_request(name) for name in "abc"))
    assert shares(engine.submit()) == {"a": 3, "b": 3}
    assert (engine.scheduler.stats().num_running, engine.scheduler.stats().num_waiting) == (2, 1)


def test_more_urgent_requests_go_first_then_those_who_came_first():
    engine = make_engine(max_num_seqs=1, enable_prefix_caching=False)
    engine.add(make_request("a", priority=1), make_request("b"), make_request("c"), make_request("d", priority=-1))
    engine.run()
    assert list(engine.ends) == ["d", "b", "c", "a"]


def test_first_come_first_served_ignores_priorities():
    engine = make_engine(max_num_seqs=1, policy="fcfs")
    engine.add(make_request("a", priority=1), make_request("b", priority=-1))
    engine.run()
    assert list(engine.ends) == ["a", "b"]


def test_a_large_request_is_not_overtaken_by_small_ones_that_would_fit():
    engine = make_engine(num_blocks=8, max_num_batched_tokens=64)
    engine.add(*(make_request(name, count, max_tokens=1) for name, count in [("a", 16), ("b", 24), ("c", 2)]))
    assert shares(engine.submit()) == {"a": 16}


@pytest.mark.parametrize(("num_blocks_of_b", "runs"), [(197, True), (198, False)])
def test_with_others_running_a_new_request_leaves_a_hundredth_of_the_blocks_free(num_blocks_of_b, runs):
    engine = make_engine(num_blocks=200, max_model_len=1000, max_num_batched_tokens=1000)
    engine.add(make_request("a", 2, max_tokens=4))
    engine.step()
    assert engine.scheduler.stats().num_free_blocks == 199
    engine.add(make_request("b", 4 * num_blocks_of_b, max_tokens=1))
    assert ("b" in shares(engine.submit())) == runs


def test_a_request_that_runs_alone_may_take_every_block():
    engine = make_engine(num_blocks=200, max_model_len=1000, max_num_batched_tokens=1000)
    engine.add(make_request("b", 800, max_tokens=1))
    assert shares(engine.submit()) == {"b": 800}


def test_a_prompts_share_is_one_token_at_least():
    engine = make_engine(max_num_batched_tokens=3, long_prefill_share=0.01)
    engine.add(*(make_request(name, 20) for name in "abc"))
    assert shares(engine.submit()) == {"a": 1, "b": 1, "c": 1}


def test_nothing_runs_without_requests():
    assert make_engine().scheduler.schedule() is None


def test_the_next_step_waits_for_the_last_without_async_scheduling():
    engine = make_engine()
    engine.add(make_request())
    assert engine.submit() is not None
    assert engine.submit() is None


def test_results_out_of_order_are_refused():
    engine = make_engine(ahead=1)
    engine.add(make_request())
    first, second = engine.submit(), engine.submit()
    with pytest.raises(ValueError, match="step 1 came with results of 1; next to report is 0"):
        engine.scheduler.update(second, ModelOutput(step_id=1, requests=[]))
    with pytest.raises(ValueError, match="step 0 came with results of 1"):
        engine.scheduler.update(first, ModelOutput(step_id=1, requests=[]))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (make_request(token_ids=[]), "the prompt is empty"),
        (make_request(num_prompt_tokens=129, max_tokens=1), "129 tokens .* must not exceed max_model_len = 128"),
        (make_request(num_prompt_tokens=128, max_tokens=None), "must not exceed max_model_len"),
        (make_request(num_prompt_tokens=100, max_tokens=29), "up to 29 .* must not exceed max_model_len = 128"),
        (make_request(max_tokens=-1), "max_tokens is -1"),
        (make_request(num_prompt_tokens=60, max_tokens=6), "takes 17 blocks of the KV cache, which has 16"),
    ],
)
def test_a_request_that_could_never_fit_is_refused(request_, reason):
    engine = make_engine(num_blocks=16)
    assert engine.scheduler.why_it_cannot_fit(request_) is not None
    with pytest.raises(ValueError, match=f"request 'a': .*{reason}"):
        engine.scheduler.add_request(request_)


def test_a_request_that_just_fits_is_let_in_and_finishes():
    engine = make_engine(num_blocks=16)
    engine.add(make_request(num_prompt_tokens=60, max_tokens=5))
    engine.run()
    assert len(engine.tokens["a"]) == 5


def test_a_second_request_of_the_same_id_is_refused_until_the_first_has_finished():
    engine = make_engine()
    engine.add(make_request(max_tokens=2))
    with pytest.raises(ValueError, match="request 'a': a request of this id has not finished"):
        engine.scheduler.add_request(make_request())
    engine.run()
    engine.scheduler.add_request(make_request())
    step = engine.submit()
    assert step.dropped_request_ids == ["a"]
    assert [new.request_id for new in step.new_requests] == ["a"]


def test_the_worker_hears_of_blocks_and_tokens_once():
    engine = make_engine()
    engine.add(make_request("a", 6, max_tokens=6))
    engine.run()
    assert [len(step.new_requests) for step in engine.steps] == [1, 0, 0, 0, 0, 0]
    assert [sum(map(len, step.scheduled[0].new_block_ids)) for step in engine.steps] == [2, 0, 0, 1, 0, 0]


def test_equal_prompts_are_computed_once():
    engine = make_engine()
    engine.add(make_request("a", token_ids=list(range(12)), max_tokens=1))
    engine.run()
    engine.add(make_request("b", token_ids=list(range(12)), max_tokens=1))
    engine.run()
    assert shares(engine.steps[-1]) == {"b": 4}
    assert engine.ends["b"].num_cached_tokens == 8
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (24, 8)


def test_generated_tokens_are_cached_too():
    engine = make_engine()
    engine.add(make_request("a", 4, max_tokens=9))
    engine.run()
    turn = [*make_request("a", 4).token_ids, *engine.tokens["a"], 1, 2]
    engine.add(make_request("b", token_ids=turn))
    engine.run()
    assert engine.ends["b"].num_cached_tokens == 12


@pytest.mark.parametrize("start", [0.0, 100.0])
def test_new_prompts_are_held_back_by_the_delay_factor_while_others_run(start):
    now = [start]
    engine = make_engine(clock=lambda: now[0], scheduler_delay_factor=2.0)
    engine.add(make_request("a", max_tokens=20))
    engine.step()
    now[0] += 1.0
    engine.add(make_request("b"))
    seen = []
    while "b" not in seen:
        engine.step()
        now[0] += 0.5
        seen += shares(engine.steps[-1])
    assert seen.count("a") == 6  # until more than 2 x 1.0 s had passed
    engine.run()


def test_news_tell_when_a_request_first_ran():
    now = [5.0]
    engine = make_engine(clock=lambda: now[0], max_num_seqs=1)
    engine.add(make_request("a", max_tokens=2), make_request("b", max_tokens=2))
    engine.run()
    now[0] = 9.0
    engine.add(make_request("c", max_tokens=2))
    engine.run()
    assert {request_id: end.started for request_id, end in engine.ends.items()} == {"a": 5.0, "b": 5.0, "c": 9.0}


def test_each_request_tells_its_phase():
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=2, num_blocks=6)
    engine.add(make_request("a", 4, max_tokens=20), make_request("b", 12, max_tokens=9))
    engine.add(make_request("c", 3, max_tokens=1))
    engine.step()

    def phases():
        states = engine.scheduler.states()
        return [(state.phase, state.num_computed_tokens, state.num_output_tokens) for state in states]

    assert phases() == [("decoding", 4, 1), ("prefilling", 4, 0), ("waiting", 0, 0)]
    engine.step()
    assert phases() == [("decoding", 5, 2), ("prefilling", 11, 0), ("waiting", 0, 0)]
    while engine.scheduler.stats().num_preemptions == 0:
        engine.step()
    assert ("preempted", 0) in [(phase, num_computed) for phase, num_computed, _ in phases()]


def test_an_idle_engine_delays_nobody():
    engine = make_engine(scheduler_delay_factor=100.0)
    engine.add(make_request("a"))
    assert shares(engine.submit()) == {"a": 3}


@pytest.mark.parametrize("ahead", [0, 1])
def test_counts_return_to_the_start(ahead):
    engine = make_engine(ahead)
    engine.add(*(make_request(name, 7, max_tokens=9) for name in "abcdef"))
    engine.run()
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 64)
    assert all(engine.tokens[name] == tokens_alone(make_request(name, 7, max_tokens=9)) for name in "abcdef")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"max_model_len": 0},
        {"long_prefill_share": 0.0},
        {"scheduler_delay_factor": -1.0},
        {"policy": "lottery"},
    ],
)
def test_limits_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_engine(**wrong)
