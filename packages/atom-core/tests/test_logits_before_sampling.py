"""What sampling parameters do to one row of logits, number by number, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from atom_core.messages import NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.extras import SamplingExtras
from atom_core.worker.sampling.sampler import Sampler
from atom_core.worker.steps.batch import StepRows, build_input

VOCAB_SIZE, EOS = 8, 7
LOGITS = [0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 0.25, 0.0]
BANNED = float("-inf")


def make_request(
    prompt: Sequence[int], output: Sequence[int] = (), *, eos: tuple[int, ...] = (EOS,), **params
) -> NewRequest:
    tokens = [*prompt, *output]
    return NewRequest("r", tokens, len(prompt), SamplingParams(temperature=0.0, **params), eos, 0)


def processed(prompt: Sequence[int], output: Sequence[int] = (), *, logits: Sequence[float] = LOGITS, **params):
    """The logits that are left to sample from, after a prompt and some output."""
    request = make_request(prompt, output, **params)
    extras = SamplingExtras.of(request, VOCAB_SIZE, "cpu")
    assert extras is not None
    row = torch.tensor(logits)
    extras.process(row, torch.tensor(request.token_ids, dtype=torch.int32))
    return row.tolist()


def changed(**tokens: float) -> list[float]:
    """`LOGITS` but for ``t3=...``."""
    return [tokens.get(f"t{token_id}", logit) for token_id, logit in enumerate(LOGITS)]


def sampled(request: NewRequest, *, logits: Sequence[float] = LOGITS, allowed: Sequence[int] | None = None) -> int:
    """The token that a step samples after `request`, where a grammar allows `allowed`."""
    tables = HostTables(2, 32, block_size=4, num_groups=1)
    states = RequestStates(2, tables, num_groups=1, vocab_size=VOCAB_SIZE, device="cpu")
    length = len(request.token_ids)
    step = SchedulerOutput(0, [ScheduledRequest("r", 0, length, [[0, 1, 2, 3]], 1)], [request], [])
    states.update(step)
    masks = None if allowed is None else {"r": np.array([sum(1 << token for token in allowed)], dtype=np.int32)}
    batch = build_input(StepRows.of(step, states.slots), tables, 4)
    [token] = Sampler(states).sample_step(step, batch, torch.tensor([logits]), masks).token_ids.tolist()
    assert states.history[states.slots["r"], length] == token
    return token


def test_a_step_that_samples_nothing_looks_at_no_logits():
    tables = HostTables(2, 32, block_size=4, num_groups=1)
    states = RequestStates(2, tables, num_groups=1, vocab_size=VOCAB_SIZE, device="cpu")
    step = SchedulerOutput(0, [ScheduledRequest("r", 0, 1, [[0]], 0)], [make_request([1, 2])], [])
    states.update(step)
    batch = build_input(StepRows.of(step, states.slots), tables, 4)
    sampled = Sampler(states).sample_step(step, batch, None)  # type: ignore[arg-type]
    assert (sampled.token_ids.tolist(), sampled.token_ids.dtype, sampled.logprobs) == ([], torch.int64, {})


# --- penalties -------------------------------------------------------------------------------------------------------


def test_a_presence_penalty_is_taken_once_from_tokens_of_the_output_alone():
    assert processed([1, 1, 2], [3, 3, 4], presence_penalty=0.5) == changed(t3=1.5, t4=-2.5)


def test_a_frequency_penalty_is_taken_as_often_as_the_output_has_the_token():
    assert processed([1, 3, 3], [3, 3, 3, 4], frequency_penalty=0.5) == changed(t3=0.5, t4=-2.5)


def test_a_negative_penalty_raises_what_was_generated():
    assert processed([1], [4], presence_penalty=-0.5, frequency_penalty=-0.25) == changed(t4=-1.25)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_each_penalty_is_taken_without_the_other(name: str):
    for size in (1.0, -1.0, 0.25):
        penalty: Any = {name: size}
        assert processed([1], [4], **penalty) == changed(t4=-2.0 - size)


def test_before_the_first_token_presence_and_frequency_penalties_change_nothing():
    assert processed([1, 3], presence_penalty=2.0, frequency_penalty=2.0) == LOGITS


def test_a_repetition_penalty_counts_the_prompt_and_the_output_each_token_once():
    penalized = processed([1, 1, 2], [3, 3, 4], repetition_penalty=2.0)
    assert penalized == changed(t1=0.5, t2=-2.0, t3=1.0, t4=-4.0)


def test_a_repetition_penalty_below_one_favours_what_was_there():
    assert processed([3], [4], repetition_penalty=0.5) == changed(t3=4.0, t4=-1.0)


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_repetition_penalty_scales_before_the_others_are_taken():
    # 2 / 2 - 0.5 * 2 - 0.25, and not (2 - 1.25) / 2.
    row = processed([1], [3, 3], repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert row == changed(t1=0.5, t3=-0.25)


def test_a_bias_comes_before_the_repetition_penalty():
    # (1 + 3) / 2 and (2 - 3) * 2: the penalty goes by the sign of the sum.
    row = processed([1, 3], repetition_penalty=2.0, logit_bias={1: 3.0, 3: -3.0, 6: 0.5})
    assert row == changed(t1=2.0, t3=-2.0, t6=0.75)


def test_no_bias_brings_back_what_is_not_allowed():
    row = processed([1], allowed_token_ids=[2, 4], logit_bias={5: 100.0, 4: 5.0})
    assert row == [BANNED, BANNED, -1.0, BANNED, 3.0, BANNED, BANNED, BANNED]


def test_no_bias_brings_back_a_bad_word_or_an_early_end():
    row = processed([1], bad_words_token_ids=[[5]], min_tokens=1, logit_bias={5: 100.0, EOS: 100.0})
    assert row == changed(t5=BANNED, t7=BANNED)


def test_no_bias_brings_back_what_a_grammar_refuses():
    assert sampled(make_request([1], logit_bias={5: 100.0}), allowed=[2, 4]) == 2


def test_bans_leave_one_of_the_tokens_that_a_grammar_allows():
    """Where the mask came last, it would leave nothing at all."""
    assert sampled(make_request([1], bad_words_token_ids=[[2]]), allowed=[2]) == 2
    assert sampled(make_request([1], bad_words_token_ids=[[2]]), allowed=[2, 4]) == 4
    assert sampled(make_request([1], min_tokens=3), allowed=[EOS]) == EOS


def test_penalties_choose_among_what_a_grammar_allows():
    assert sampled(make_request([1], allowed_token_ids=[3, 6])) == 3
    assert sampled(make_request([1], [3], presence_penalty=1.8), allowed=[3, 6]) == 6


# --- bans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_output", "is_banned"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_stop_tokens_are_banned_until_the_minimum_has_come(num_output: int, is_banned: bool):
    row = processed([1, 1, 1, 1], [0] * num_output, min_tokens=3, stop_token_ids=[5])
    assert row == (changed(t5=BANNED, t7=BANNED) if is_banned else LOGITS)


def test_a_minimum_length_bans_nothing_where_nothing_stops():
    assert processed([1], min_tokens=3, eos=(), logit_bias={6: 0.75}) == changed(t6=1.0)


def test_a_request_without_extras_has_none():
    assert SamplingExtras.of(make_request([1], stop_token_ids=[3]), VOCAB_SIZE, "cpu") is None
    reports: list[Any] = [{"logprobs": 0}, {"prompt_logprobs": 0}]
    for reported in reports:
        assert SamplingExtras.of(make_request([1], **reported), VOCAB_SIZE, "cpu") is not None


def test_a_bad_word_of_one_token_is_banned_everywhere():
    assert processed([5], bad_words_token_ids=[[5]]) == changed(t5=BANNED)
    assert processed([1], [2, 3], bad_words_token_ids=[[5], [0]]) == changed(t5=BANNED, t0=BANNED)


@pytest.mark.parametrize(
    ("output", "is_banned"),
    [
        ([2, 3], True),
        ([6, 2, 3], True),
        ([2, 3, 3], False),
        ([3, 2], False),
        ([3], False),
        ([2, 3, 4], False),
        ([], False),
    ],
)
def test_the_last_token_of_a_bad_word_is_banned_right_after_the_others(output: list[int], is_banned: bool):
    row = processed([1], output, bad_words_token_ids=[[2, 3, 5]])
    assert row == (changed(t5=BANNED) if is_banned else LOGITS)


def test_a_bad_word_does_not_begin_in_the_prompt():
    assert processed([2, 3], bad_words_token_ids=[[2, 3, 5]]) == LOGITS
    assert processed([2], [3], bad_words_token_ids=[[2, 3, 5]]) == LOGITS


def test_bad_words_of_different_lengths_are_each_looked_for():
    words = [[6], [3, 5], [2, 3, 4], [0, 2, 3, 1]]
    assert processed([1], [2, 3], bad_words_token_ids=words) == changed(t6=BANNED, t5=BANNED, t4=BANNED)
    assert processed([1], [6, 3], bad_words_token_ids=words) == changed(t6=BANNED, t5=BANNED)


def test_what_is_no_token_of_the_model_is_no_bad_word_and_no_stop_token():
    params = {"bad_words_token_ids": [[], [VOCAB_SIZE], [2, VOCAB_SIZE], [5]], "stop_token_ids": [VOCAB_SIZE, 3]}
    assert processed([1], [2], min_tokens=2, **params) == changed(t5=BANNED, t3=BANNED, t7=BANNED)
