"""What a key may spend in a minute, by a clock that is told the time."""

from __future__ import annotations

import pytest

from atom_server.access.keys import Caller
from atom_server.access.rate_limits import RateLimits
from atom_server.errors import APIError
from clock import Clock

ALICE, BOB = Caller("alice"), Caller("bob")


def refused(take, *args):
    with pytest.raises(APIError) as caught:
        take(*args)
    assert caught.value.status == 429
    return int(caught.value.headers["retry-after"])


def test_requests_come_back_evenly():
    clock = Clock()
    rates = RateLimits(requests=6, clock=clock)
    for _ in range(6):
        rates.take_request(ALICE)
    assert refused(rates.take_request, ALICE) == 10
    clock.now = 9.0
    assert refused(rates.take_request, ALICE) == 1
    clock.now = 10.0
    rates.take_request(ALICE)
    assert refused(rates.take_request, ALICE) == 10
    rates.take_request(BOB)


def test_no_more_than_a_minutes_worth_is_saved():
    clock = Clock()
    rates = RateLimits(requests=2, clock=clock)
    clock.now = 3600.0
    rates.take_request(ALICE)
    rates.take_request(ALICE)
    refused(rates.take_request, ALICE)


def test_a_prompt_that_is_too_long_now_costs_nothing():
    clock = Clock()
    rates = RateLimits(tokens=60, clock=clock)
    rates.take_prompt(ALICE, 40)
    assert refused(rates.take_prompt, ALICE, 30) == 10
    rates.take_prompt(ALICE, 20)


def test_a_prompt_of_more_than_a_minute_allows_waits_for_all_of_it():
    clock = Clock()
    rates = RateLimits(tokens=60, clock=clock)
    rates.take_prompt(ALICE, 1)
    assert refused(rates.take_prompt, ALICE, 600) == 1
    clock.now = 1.0
    rates.take_prompt(ALICE, 600)
    assert refused(rates.take_request, ALICE) == 541


def test_output_that_overdraws_is_paid_back_before_the_next_request():
    clock = Clock()
    rates = RateLimits(tokens=60, clock=clock)
    rates.take_request(ALICE)
    rates.take_prompt(ALICE, 10)
    rates.take_output(ALICE, 70)
    assert refused(rates.take_request, ALICE) == 21
    clock.now = 21.0
    rates.take_request(ALICE)


def test_a_request_that_is_refused_for_its_tokens_is_not_counted_as_one():
    clock = Clock()
    rates = RateLimits(requests=1, tokens=60, clock=clock)
    rates.take_output(ALICE, 60)
    refused(rates.take_request, ALICE)
    clock.now = 1.0
    rates.take_request(ALICE)


def test_without_limits_nothing_is_counted():
    rates = RateLimits()
    for _ in range(1000):
        rates.take_request(ALICE)
        rates.take_prompt(ALICE, 10**9)
    assert not rates._allowances
