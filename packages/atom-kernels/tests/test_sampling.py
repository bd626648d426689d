"""Tokens are drawn by one rule, whatever the backend and the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from atom_kernels.sampling import (
    SAMPLE_SLOTS,
    SamplingTables,
    SlotSamplingProblem,
    native_backend,
    philox_uniform,
    sample,
    token_logprobs,
    torch_backend,
)
from atom_kernels.select import select

SAMPLERS = {"torch": torch_backend.sample_by_torch, "reference": sample}
if native_backend.unavailable() is None:
    SAMPLERS["native"] = native_backend.sample_by_native
every_sampler = pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)


def draw_with(draw, logits, uniform, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Tokens of rows that share their parameters; one uniform number a row, one row of logits for all."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    uniform = torch.as_tensor(uniform, dtype=torch.float64)
    rows = uniform.numel()
    return draw(
        logits.expand(rows, -1).contiguous(),
        uniform,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int64),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    ).tolist()


def tokens_that_can_be_drawn(draw, logits, **filters):
    return sorted(set(draw_with(draw, logits, torch.linspace(0, 1 - 1e-9, 400), **filters)))


def number_of(seed, sample, position):
    """The random number of one token."""
    return philox_uniform(*(torch.tensor([x]) for x in (seed, sample, position))).item()


# --- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_test_vectors(counter, key, expected):
    """A counter is position and sample, a key the seed: low words first. The number is 27 and 26 bits of two words."""
    words = (key, counter[2:], counter[:2])
    seed, sample, position = (np.array([low | high << 32], dtype=np.uint64).view(np.int64) for low, high in words)
    number = ((expected[0] >> 5) << 26 | expected[1] >> 6) * 2.0**-53
    assert philox_uniform(*map(torch.from_numpy, (seed, sample, position))).item() == number


def test_random_numbers_are_the_same_in_torch_and_in_c():
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (200,), generator=generator)
    samples = torch.randint(0, 2**40, (200,), generator=generator)
    positions = torch.arange(200) * 10**8
    if native_backend.unavailable() is None:
        numbers = native_backend.philox_by_native(seeds, samples, positions)
        assert torch.equal(numbers, philox_uniform(seeds, samples, positions))


def test_random_numbers_are_uniform_and_differ_by_seed_sample_and_position():
    ones = torch.ones(20000, dtype=torch.int64)
    count = torch.arange(20000)
    by_position, by_sample, by_seed = (
        philox_uniform(ones, ones, count),
        philox_uniform(ones, count, ones),
        philox_uniform(count, ones, ones),
    )
    for numbers in (by_position, by_sample, by_seed):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        # The largest gap to the uniform distribution, whose 0.1 % critical value is 1.95 / sqrt(n).
        gap = (numbers.sort().values - (count + 0.5) / 20000).abs().max()
        assert gap < 1.95 / math.sqrt(20000)
    assert torch.cat((by_position, by_sample, by_seed)).unique().numel() > 59990


# --- the rule --------------------------------------------------------------------------------------------------------


@every_sampler
def test_the_first_token_whose_cumulative_probability_exceeds_the_number_is_drawn(draw):
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert draw_with(draw, logits, [0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.61, 0.999]) == [0, 0, 1, 1, 2, 2, 3, 3]


@every_sampler
def test_temperature_zero_takes_the_best_token_and_the_first_among_equals(draw):
    assert draw_with(draw, [1.0, 5.0, 5.0, 2.0], [0.9], temperature=0.0) == [1]


@every_sampler
def test_only_a_temperature_of_zero_is_greedy(draw):
    assert tokens_that_can_be_drawn(draw, [0.0, 1e-6], temperature=1e-6) == [0, 1]
    assert tokens_that_can_be_drawn(draw, [0.0, 1e-6], temperature=0.0) == [1]


@every_sampler
def test_top_k_of_one_keeps_the_best_alone(draw):
    assert tokens_that_can_be_drawn(draw, [1.0, 3.0, 2.0], top_k=1) == [1]
    assert tokens_that_can_be_drawn(draw, [1.0, 3.0, 2.0], top_k=3) == [0, 1, 2]


@every_sampler
def test_top_k_keeps_the_best_and_all_that_tie_with_the_last_of_them(draw):
    assert tokens_that_can_be_drawn(draw, [1.0, 3.0, 2.0, 0.0], top_k=2) == [1, 2]
    assert tokens_that_can_be_drawn(draw, [1.0, 3.0, 2.0, 2.0], top_k=2) == [1, 2, 3]
    assert tokens_that_can_be_drawn(draw, [1.0, 1.5, 1.2], top_k=-1) == [0, 1, 2]


@every_sampler
def test_top_p_keeps_tokens_until_their_mass_reaches_it(draw):
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert tokens_that_can_be_drawn(draw, logits, top_p=0.65) == [1, 3]
    assert tokens_that_can_be_drawn(draw, logits, top_p=0.75) == [1, 2, 3]
    assert tokens_that_can_be_drawn(draw, logits, top_p=0.0) == [1]


@every_sampler
def test_top_p_ends_with_the_token_that_reaches_it_to_the_bit(draw):
    logits = torch.tensor([1 / 4, 1, 1 / 4, 1 / 2]).log()  # sums of these weights have no rounding
    assert tokens_that_can_be_drawn(draw, logits, top_p=0.5) == [1]
    assert tokens_that_can_be_drawn(draw, logits, top_p=0.75) == [1, 3]
    assert tokens_that_can_be_drawn(draw, logits, top_p=math.nextafter(0.75, 1) + 2**-24) == [0, 1, 2, 3]
    beside = torch.tensor([1 / 4, 1, 1 / 4, 1 / 2, 1 / 8]).log()
    assert tokens_that_can_be_drawn(draw, beside, top_k=4, top_p=0.75) == [1, 3]


@every_sampler
@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.6, 0.9])
def test_top_p_cuts_a_nearly_flat_distribution_where_it_says(draw, top_p):
    logits = torch.linspace(0, 0.1, 150)
    mass = logits.double().exp().flip(0).cumsum(0)
    num_kept = int(torch.searchsorted(mass, mass[-1] * top_p)) + 1
    assert tokens_that_can_be_drawn(draw, logits, top_p=top_p) == list(range(150 - num_kept, 150))


@every_sampler
def test_top_p_counts_what_top_k_has_left(draw):
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    # The first of the two best has 4/7 of the mass.
    assert tokens_that_can_be_drawn(draw, logits, top_k=2, top_p=0.55) == [1]
    assert tokens_that_can_be_drawn(draw, logits, top_k=2, top_p=0.6) == [1, 3]


@every_sampler
def test_top_p_keeps_all_tokens_that_tie_at_its_threshold(draw):
    assert tokens_that_can_be_drawn(draw, [2.0, 1.0, 1.0, 1.0], top_p=0.6) == [0, 1, 2, 3]


@every_sampler
def test_min_p_is_relative_to_the_best_token(draw):
    logits = torch.tensor([0.5, 0.26, 0.24]).log()
    assert tokens_that_can_be_drawn(draw, logits, min_p=0.5) == [0, 1]
    assert tokens_that_can_be_drawn(draw, logits, min_p=1.0) == [0]


@every_sampler
def test_temperature_comes_before_the_filters(draw):
    logits = torch.tensor([0.6, 0.25, 0.15]).log()
    assert tokens_that_can_be_drawn(draw, logits, temperature=0.5, top_p=0.8) == [0]
    assert tokens_that_can_be_drawn(draw, logits, temperature=2.0, top_p=0.8) == [0, 1, 2]


@every_sampler
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_left_alone_is_drawn_whatever_the_number(draw, uniform):
    logits = torch.full((300,), float("-inf"))
    logits[123] = -50.0
    for temperature in (0.0, 1e-6, 1.0):
        assert draw_with(draw, logits, [uniform], temperature=temperature) == [123]
    assert draw_with(draw, logits, [uniform], top_k=5) == [123]
    assert draw_with(draw, logits, [uniform], top_p=0.5) == [123]
    assert draw_with(draw, logits, [uniform], min_p=0.5) == [123]


@every_sampler
def test_nan_counts_as_impossible(draw):
    assert tokens_that_can_be_drawn(draw, [float("nan"), 1.0, 2.0]) == [1, 2]
    assert draw_with(draw, [float("nan"), 1.0, 2.0], [0.5], temperature=0.0) == [2]


@every_sampler
def test_an_infinite_logit_beats_all_others(draw):
    assert tokens_that_can_be_drawn(draw, [1.0, float("inf"), 2.0]) == [1]


@every_sampler
def test_the_greatest_number_still_draws_a_token_that_has_mass(draw):
    logits = torch.zeros(1000)
    logits[900:] = float("-inf")
    assert draw_with(draw, logits, [1 - 2**-53]) == [899]


def test_what_check_tries_is_greedy_and_random_with_filters_and_without():
    problems = SAMPLE_SLOTS.parity_problems()
    assert {problem.filters for problem in problems} == {False, True}
    _, (_, slots, _, temperature, *_) = SAMPLE_SLOTS.make_inputs(problems[-1], 17, torch.Generator().manual_seed(0))
    assert {bool(value) for value in temperature[slots]} == {False, True}


def test_the_work_of_a_draw_is_to_read_its_numbers_once():
    assert SAMPLE_SLOTS.work(SlotSamplingProblem(1000, filters=True), 3).num_bytes == 12000


def test_the_contract_refuses_columns_of_different_lengths():
    rows = torch.zeros(2)
    with pytest.raises(ValueError):
        sample(torch.zeros(2, 5), torch.zeros(1, dtype=torch.float64), rows, rows.long(), rows, rows)


# --- properties ------------------------------------------------------------------------------------------------------


def make_batch(num_rows=24, vocab_size=3000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    turns = torch.arange(num_rows)
    return (
        logits,
        torch.rand(num_rows, dtype=torch.float64, generator=generator),
        torch.tensor([0.0, 0.7, 1.0, 1.5])[turns % 4],
        torch.tensor([0, 40, 3])[turns % 3],
        torch.tensor([0.9, 1.0, 0.3, 0.99, 1.0])[turns % 5],
        torch.tensor([0.0, 0.0, 0.05])[turns % 3],
    )


@every_sampler
def test_a_row_draws_the_same_token_alone_and_in_any_batch(draw):
    batch = make_batch()
    together = draw(*batch)
    for row in range(len(together)):
        assert draw(*(x[row : row + 1] for x in batch)).item() == together[row]
    order = torch.randperm(len(together), generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(*(x[order] for x in batch)), together[order])


@every_sampler
def test_other_strides_and_number_formats_draw_the_same_tokens(draw):
    logits, *rows = make_batch()
    expected = draw(logits, *rows)
    apart = [torch.stack([row, row + 1], dim=1)[:, 0] for row in rows]
    assert torch.equal(draw(logits.T.contiguous().T, *apart), expected)
    uniform, temperature, top_k, top_p, min_p = rows
    assert torch.equal(
        draw(logits, uniform, temperature.double(), top_k.int(), top_p.double(), min_p.double()), expected
    )


def test_tokens_are_the_same_without_native_kernels(monkeypatch):
    problem = SlotSamplingProblem(3000, filters=True)
    _, inputs = SAMPLE_SLOTS.make_inputs(problem, 24, torch.Generator().manual_seed(0))
    tokens = select(SAMPLE_SLOTS, problem)(*inputs)
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    native_backend._functions.cache_clear()  # as in a process that has not loaded them
    assert torch.equal(select(SAMPLE_SLOTS, problem)(*inputs), tokens)


@every_sampler
def test_drawn_tokens_follow_the_distribution(draw):
    probabilities = torch.tensor([0.05, 0.3, 0.0, 0.15, 0.1, 0.25, 0.05, 0.1])
    num_draws = 20000
    positions = torch.arange(num_draws)
    uniform = philox_uniform(torch.full_like(positions, 7), torch.zeros_like(positions), positions)
    if draw is sample:
        num_draws, uniform = 4000, uniform[:4000]
    tokens = torch.tensor(draw_with(draw, probabilities.log(), uniform))
    counts = torch.bincount(tokens, minlength=8).double()
    assert counts[2] == 0
    expected = probabilities.double() * num_draws
    seen = expected > 0
    chi_square = ((counts - expected)[seen].square() / expected[seen]).sum()
    # 6 degrees of freedom: beyond 22.5 with a probability of 0.1 %.
    assert chi_square < 22.5


def test_a_seed_gives_the_same_tokens_again_and_another_seed_gives_others():
    logits = torch.zeros(64, 1000)
    positions = torch.arange(64)

    def draw(seed):
        none = torch.zeros(1)
        tables = SamplingTables(none + 1, none.int(), none + 1, none, torch.tensor([seed]), none.long())
        plan = select(SAMPLE_SLOTS, SlotSamplingProblem(1000, filters=False))
        return plan(logits, torch.zeros(64, dtype=torch.int64), positions, *tables)

    assert torch.equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).sum() > 50


# --- tables of requests ---------------------------------------------------------------------------------------------


def test_each_position_of_each_sample_has_the_random_number_of_its_own():
    seeds, samples, positions = [5, 5, -9, 2**40 + 1], [0, 3, 0, 1], [0, 1, 2, 3, 4, 7, 8, 2**31 - 1]
    none = torch.zeros(4)
    tables = SamplingTables(torch.ones(4), none.int(), torch.ones(4), none, torch.tensor(seeds), torch.tensor(samples))
    slots = torch.arange(4).repeat(len(positions))
    places = torch.tensor(positions).repeat_interleave(4)
    for filters in (False, True):
        plan = select(SAMPLE_SLOTS, SlotSamplingProblem(1000, filters))
        drawn = plan(torch.zeros(len(slots), 1000), slots, places, *tables).tolist()
        # Among 1000 equals, the number says directly which one.
        assert drawn == [
            int(1000 * number_of(seeds[slot], samples[slot], place))
            for slot, place in zip(slots.tolist(), places.tolist(), strict=True)
        ]


def test_rows_find_their_parameters_by_slot_and_leave_filters_aside_that_nobody_uses():
    temperature, best = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 0.5])
    tables = SamplingTables(
        temperature, torch.tensor([0, 0, 1]).int(), best, torch.zeros(3), torch.zeros(3).long(), torch.zeros(3).long()
    )
    logits = torch.linspace(0, 1, 50).expand(60, -1)
    positions = torch.arange(60)

    def drawn(slot, *, filters):
        plan = select(SAMPLE_SLOTS, SlotSamplingProblem(50, filters))
        return set(plan(logits, torch.full((60,), slot), positions, *tables).tolist())

    assert len(drawn(0, filters=True)) > 20
    assert drawn(1, filters=True) == drawn(1, filters=False) == {49}
    assert drawn(2, filters=True) == {49}
    assert drawn(2, filters=False) == drawn(0, filters=True)


# --- log probabilities -----------------------------------------------------------------------------------------------


def test_logprobs_of_the_chosen_token_with_its_rank_and_the_best():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.4, 0.1, 0.3, 0.2]]).log() + 5
    found = token_logprobs(logits, torch.tensor([2, 0]), 2)
    torch.testing.assert_close(found.chosen_B.exp(), torch.tensor([0.2, 0.4]))
    assert found.rank_B.tolist() == [3, 1]
    assert found.top_ids_BN.tolist() == [[1, 3], [0, 2]]
    torch.testing.assert_close(found.top_logprobs_BN.exp(), torch.tensor([[0.4, 0.3], [0.4, 0.3]]))


def test_tokens_that_tie_share_a_rank_and_no_best_tokens_may_be_asked_for():
    found = token_logprobs(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([2]), 0)
    assert found.rank_B.tolist() == [1]
    assert found.top_ids_BN.shape == (1, 0)


def test_logprobs_of_a_row_do_not_depend_on_its_batch():
    logits = torch.randn(9, 5000, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(9)
    together = token_logprobs(logits, tokens, 5)
    for row in range(9):
        alone = token_logprobs(logits[row : row + 1], tokens[row : row + 1], 5)
        assert all(torch.equal(one[0], every[row]) for one, every in zip(alone, together, strict=True))
