"""How requests end: stop tokens, lengths, aborts, what is reported and when blocks return."""

from __future__ import annotations

import pytest

from atom_core.messages import ModelOutput, RequestStepOutput
from fake_worker import prompt_logprobs_alone, tokens_alone
from scheduled_requests import make_engine, make_request


def report_tokens(engine, *token_ids):
    """Report the earliest step as if these had been sampled."""
    step, _ = engine.in_flight.popleft()
    engine.worker.report(step.step_id)
    results = [RequestStepOutput(request_id=step.scheduled[0].request_id, token_ids=list(token_ids))]
    return engine.scheduler.update(step, ModelOutput(step_id=step.step_id, requests=results))


def test_the_end_of_sequence_ends_a_request():
    engine = make_engine()
    engine.add(make_request(eos_token_ids=(5, 6)))
    engine.submit()
    (output,) = report_tokens(engine, 6)
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([6], "stop", None)


def test_a_stop_token_ends_a_request_and_is_named():
    engine = make_engine()
    engine.add(make_request(stop_token_ids=[9], eos_token_ids=(5,)))
    engine.submit()
    (output,) = report_tokens(engine, 9)
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([9], "stop", 9)


def test_nothing_is_computed_once_the_end_is_forced():
    """The sample in flight and the tokens known to follow it end the request, by a stop token or by their number."""
    for forced, reason in (([7, 8, 5, 9], "stop"), ([7, 8, 9, 4], "length")):
        engine = make_engine(ahead=1)
        engine.add(make_request(eos_token_ids=(5,), max_tokens=4 if reason == "length" else 20))
        engine.submit()
        engine.scheduler.force("a", forced)
        assert engine.submit() is None
        (output,) = report_tokens(engine, 7)
        assert output.new_token_ids == forced[: 3 if reason == "stop" else 4]
        assert output.finish_reason == reason


def test_forced_tokens_are_computed_in_one_step_and_told_to_the_worker_once():
    engine = make_engine(ahead=1)
    request = make_request(max_tokens=20)
    expected = tokens_alone(request)
    engine.add(request)
    engine.submit()
    engine.scheduler.force("a", expected[:5])
    step = engine.submit()
    (entry,) = step.scheduled
    assert (entry.num_new_tokens, entry.num_samples, entry.draft_token_ids) == (5, 1, tuple(expected[1:5]))
    engine.run()
    assert engine.tokens["a"] == expected
    assert sum(len(entry.draft_token_ids) for step in engine.steps for entry in step.scheduled) == 4
    assert engine.scheduler.stats().num_forced_tokens == 4


def test_max_tokens_end_a_request():
    engine = make_engine()
    engine.add(make_request(max_tokens=3))
    engine.run()
    assert len(engine.tokens["a"]) == 3
    assert engine.ends["a"].finish_reason == "length"


def test_without_max_tokens_a_request_goes_up_to_the_context():
    engine = make_engine(max_model_len=20)
    engine.add(make_request(max_tokens=None))
    engine.run()
    assert engine.ends["a"].finish_reason == "length"
    assert sum(step.num_tokens for step in engine.steps) == 19


def test_stop_tokens_do_not_end_a_request_before_min_tokens():
    engine = make_engine()
    engine.add(make_request(min_tokens=2, eos_token_ids=(5,), max_tokens=9))
    reasons = []
    for _ in range(3):
        engine.submit()
        reasons += [output.finish_reason for output in report_tokens(engine, 5)]
    assert reasons == [None, None, "stop"]


def test_tokens_after_a_stop_in_one_result_are_not_reported():
    engine = make_engine()
    engine.add(make_request(eos_token_ids=(5,)))
    engine.submit()
    (output,) = report_tokens(engine, 1, 5, 2)
    assert output.new_token_ids == [1, 5]


def test_tokens_computed_past_a_stop_are_not_reported_and_not_cached():
    engine = make_engine(ahead=1)
    engine.add(make_request(eos_token_ids=(5,), max_tokens=20))
    engine.submit()
    engine.submit()
    assert report_tokens(engine, 5)[0].finish_reason == "stop"
    assert not engine.scheduler.has_unfinished()
    assert report_tokens(engine, 7) == []
    engine.add(make_request("b", token_ids=[*make_request().token_ids, 5, 7]))
    engine.run()
    assert engine.ends["b"].num_cached_tokens == 0


def test_a_request_known_to_end_by_length_is_not_scheduled_again():
    engine = make_engine(ahead=1)
    engine.add(make_request(max_tokens=2))
    assert engine.submit() is not None
    assert engine.submit() is not None
    assert engine.submit() is None


def test_blocks_return_when_the_last_step_with_them_is_reported():
    engine = make_engine(ahead=1)
    engine.add(make_request(eos_token_ids=(5,)))
    engine.submit()
    engine.submit()
    report_tokens(engine, 5)
    assert engine.scheduler.stats().num_free_blocks == 63
    report_tokens(engine, 1)
    assert engine.scheduler.stats().num_free_blocks == 64


def test_a_waiting_request_is_aborted():
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("a"), make_request("b"), make_request("c", max_tokens=2))
    engine.step()
    engine.abort("b")
    engine.run()
    assert engine.ends["b"].finish_reason == "abort"
    assert list(engine.ends) == ["b", "a", "c"]


def test_a_running_request_is_aborted_and_the_worker_told():
    engine = make_engine()
    engine.add(make_request("a"), make_request("b", max_tokens=4))
    engine.step()
    engine.abort("a")
    engine.run()
    assert engine.steps[1].dropped_request_ids == ["a"]
    assert [entry.request_id for entry in engine.steps[1].scheduled] == ["b"]


def test_an_abort_in_mid_flight_reports_nothing_more_and_frees_blocks_in_time():
    engine = make_engine(ahead=1)
    engine.add(make_request("a"), make_request("b", max_tokens=4))
    engine.submit()
    engine.submit()
    engine.abort("a")
    assert engine.scheduler.stats().num_free_blocks == 62
    engine.run()
    assert engine.tokens["a"] == []
    assert engine.tokens["b"] == tokens_alone(make_request("b", max_tokens=4))
    assert engine.scheduler.stats().num_free_blocks == 64


def test_aborting_the_unknown_and_the_finished_says_nothing():
    engine = make_engine()
    engine.add(make_request(max_tokens=1))
    engine.run()
    assert engine.scheduler.abort(["a", "never seen"]) == []


def test_many_aborts_of_waiting_requests_leave_nothing_behind():
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("first", max_tokens=30))
    engine.step()
    for i in range(2000):
        engine.add(make_request(str(i)))
        engine.abort(str(i))
    assert len(engine.scheduler._book.waiting._lines[""].heap) < 100


@pytest.mark.parametrize(("overrides", "reason"), [({"kind": "embed"}, "stop"), ({"max_tokens": 0}, "length")])
def test_a_request_for_no_tokens_ends_with_its_prompt(overrides, reason):
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("a", 20, **overrides))
    engine.run()
    assert (engine.tokens["a"], engine.ends["a"].finish_reason) == ([], reason)
    assert not any(entry.num_samples for step in engine.steps for entry in step.scheduled)
    assert sum(step.num_tokens for step in engine.steps) == 20


def test_prompt_logprobs_come_whole_with_the_first_token():
    engine = make_engine(max_num_batched_tokens=8)
    request = make_request("a", 20, prompt_logprobs=0, max_tokens=3)
    engine.add(request)
    engine.run()
    first, *others = engine.outputs["a"]
    assert first.prompt_logprobs == prompt_logprobs_alone(request)
    assert [output.prompt_logprobs for output in others] == [None, None]


def test_prompt_logprobs_take_no_prefix_hits():
    engine = make_engine()
    engine.add(make_request("a", 20, max_tokens=1))
    engine.run()
    request = make_request("b", token_ids=make_request("a", 20).token_ids, prompt_logprobs=0, max_tokens=1)
    engine.add(request)
    engine.run()
    assert engine.ends["b"].num_cached_tokens == 0
    assert engine.ends["b"].prompt_logprobs == prompt_logprobs_alone(request)


def test_a_prompt_of_one_token_has_no_prompt_logprobs():
    engine = make_engine()
    engine.add(make_request("a", 1, prompt_logprobs=0, max_tokens=1))
    engine.run()
    assert engine.ends["a"].prompt_logprobs == []
