"""How often drafts are right is computed as the rules define it. n: places, V: tokens of the vocabulary."""

from __future__ import annotations

import pytest
import torch

from benchmarks import tables
from benchmarks.acceptance import compare, ngrams, race

P = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]]).double()
Q = torch.tensor([[0.3, 0.2, 0.3, 0.05, 0.15]]).double()


def test_a_race_is_won_in_both_by_a_token_that_nobody_overtakes_in_either():
    by_definition = (1 / torch.maximum(P / P.T, Q / Q.T).sum(1)).sum()
    assert float(race(P, Q)) == pytest.approx(float(by_definition))
    times = -torch.rand(200_000, 5, generator=torch.Generator().manual_seed(0)).double().log()
    share = ((times / P).argmin(1) == (times / Q).argmin(1)).double().mean()
    assert float(race(P, Q)) == pytest.approx(float(share), abs=0.006)


def test_equal_distributions_are_always_right_and_tokens_without_probability_do_no_harm():
    impossible = torch.tensor([[0.5, 0.0, 0.5]]).double()
    assert float(race(P, P)) == pytest.approx(1)
    assert float(race(impossible, impossible)) == pytest.approx(1)


def test_each_rule_is_right_as_often_as_it_says():
    found = compare(P.log(), Q.log(), temperature=1.0)
    assert list(found) == list(tables.ACCEPTANCE_RULES)
    # The draft's most likely token is the first; intervals begin at 0, .5, .7, .8, .9 and at 0, .3, .5, .8, .85.
    assert list(found.values()) == pytest.approx([0.5, 0.3 + 0 + 0.1 + 0.05 + 0.1, float(race(P, Q)), 0.75])


def test_temperatures_change_both_distributions():
    sharp = compare(P.log(), Q.log(), temperature=0.1)
    assert sharp["greedy drafts"] > 0.99


def test_ngrams_are_right_with_the_probability_of_what_they_say():
    logits = torch.zeros(2, 10)
    logits[0, 3] = logits[1, 9] = 2.0
    found = ngrams(logits, [1, 2, 3, 4, 1, 2, 3, 4], temperature=1.0)
    expected = (torch.softmax(logits[0], 0)[3] + torch.softmax(logits[1], 0)[4]) / 2
    assert found["num_drafts"] == 2
    assert found["rejection sampling"] == pytest.approx(float(expected))
