"""What drafters propose, how far they are believed, and when drafts are worth their time."""

from __future__ import annotations

import random

import pytest

from atom_core.speculation import (
    NO_DRAFT,
    Candidate,
    Draft,
    DraftStatistics,
    EachByItself,
    Speculation,
    SpeculationConfig,
    Trail,
)
from atom_core.speculation import ngram as ngram_module
from atom_core.speculation.costs import StepCosts
from atom_core.speculation.ngram import NgramDrafter


class FixedDrafter:
    """The same tokens each time."""

    def __init__(self, *token_ids: int, level: int = 3) -> None:
        self._draft = Draft(token_ids, level)

    def propose(self, token_ids, num_tokens):
        return Draft(self._draft.token_ids[:num_tokens], self._draft.level)


# --- n-grams ---------------------------------------------------------------------------------------------------------


def test_what_followed_the_last_tokens_before_is_proposed():
    assert NgramDrafter(2, 5).propose([1, 2, 3, 4, 5, 2, 3], 3) == Draft([4, 5, 2], 2)


def test_the_place_that_agrees_furthest_is_taken_and_the_latest_of_equals():
    assert NgramDrafter(2, 5).propose([9, 1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1) == Draft([7], 3)
    assert NgramDrafter(2, 5).propose([2, 3, 7, 2, 3, 8, 2, 3], 1) == Draft([8], 2)
    # No more than two tokens are compared, so that the latest place counts.
    assert NgramDrafter(2, 2).propose([9, 1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1) == Draft([8], 2)


def test_nothing_is_proposed_where_nothing_agrees():
    assert NgramDrafter(2, 5).propose([1, 2, 3, 4], 4).token_ids == ()
    assert NgramDrafter(2, 5).propose([1], 4).token_ids == ()
    assert NgramDrafter(3, 5).propose([1, 2, 3, 2, 3], 4).token_ids == ()


def test_a_circle_goes_on():
    assert NgramDrafter(2, 5).propose([5, 6, 7, 5, 6, 7, 5, 6], 7).token_ids == [7, 5, 6, 7, 5, 6, 7]


def furthest(token_ids: list[int], shortest: int, longest: int) -> int:
    """How many of the last tokens stand together at an earlier place, by looking everywhere."""
    for length in range(longest, shortest - 1, -1):
        if any(token_ids[i : i + length] == token_ids[-length:] for i in range(len(token_ids) - length)):
            return length
    return 0


def test_an_index_that_grows_with_its_request_finds_what_there_is(monkeypatch):
    monkeypatch.setattr(ngram_module, "MOST_COMPARED", 10**6)
    chooser, growing = random.Random(4), NgramDrafter(2, 5)
    token_ids: list[int] = []
    for _ in range(400):
        token_ids += [chooser.randrange(6) for _ in range(chooser.randint(1, 3))]
        assert growing.propose(token_ids, 4).level == furthest(token_ids, 2, 5)
    assert len(growing._last) > 256


def test_each_proposal_stands_in_the_text():
    chooser = random.Random(6)
    token_ids = [chooser.randrange(9) for _ in range(500)]
    drafter = NgramDrafter(2, 5)
    for length in range(2, 500):
        draft = drafter.propose(token_ids[:length], 1)
        if draft.token_ids:
            wanted = [*token_ids[length - draft.level : length], draft.token_ids[0]]
            places = range(length - draft.level)
            assert any(token_ids[place : place + len(wanted)] == wanted for place in places)


def test_a_long_prompt_is_indexed_over_some_calls_within_bounds(monkeypatch):
    monkeypatch.setattr(ngram_module, "MOST_INDEXED", 100)
    token_ids = [7, 8, 9, *range(100, 1100), 7, 8]
    drafter = NgramDrafter(2, 5)
    for call in range(1, 12):
        drafter.propose(token_ids, 2)
        assert len(drafter._before) == min(100 * call, len(token_ids) - 1)
    assert drafter.propose(token_ids, 1).token_ids == [9]
    assert drafter._last.itemsize * len(drafter._last) + 4 * len(drafter._before) <= 20 * len(token_ids)


# --- how often they are right ----------------------------------------------------------------------------------------


def test_a_chance_follows_what_came_by_level_and_begins_in_the_middle():
    trail = Trail(FixedDrafter(4, 5))
    assert trail.chance(3) == trail.chance(1) == 0.5
    token_ids = [1]
    for _ in range(40):
        trail.look(token_ids, 2)
        token_ids = [*token_ids, 4]
    assert trail.chance(3) > 0.9
    assert trail.chance(1) == 0.5
    for _ in range(40):
        trail.look(token_ids, 2)
        token_ids = [*token_ids, 6]
    assert trail.chance(3) < 0.1


def test_drafts_behind_a_wrong_one_say_nothing():
    trail = Trail(FixedDrafter(4, 5, 6))
    trail.look([1], 3)
    trail.look([1, 9, 5, 6], 3)
    assert trail.chance(3) == pytest.approx(0.94 / 2.88)


def test_looking_twice_at_the_same_tokens_counts_once():
    trail = Trail(FixedDrafter(4))
    trail.look([1], 1)
    trail.look([1], 1)
    trail.look([1, 4], 1)
    assert trail.chance(3) == pytest.approx(1.94 / 2.88)


def test_a_draft_that_a_step_brought_follows_the_tokens_it_was_made_after_and_no_others():
    trail = Trail()
    trail.take(Draft([4, 5, 6]), [1, 2])
    assert trail.look([1, 2], 2) == Draft([4, 5])
    assert trail.look([1, 2, 9], 2).token_ids == ()
    assert trail.chance(0) == pytest.approx(0.94 / 2.88)
    trail.look([1, 2, 9, 4], 2)
    assert trail.chance(0) == pytest.approx(0.94 / 2.88)


def test_a_draft_is_judged_when_the_next_step_brings_one_or_none():
    trail = Trail()
    trail.take(Draft([4]), [1])
    trail.take(NO_DRAFT, [1, 4, 8])
    assert trail.chance(0) == pytest.approx(1.94 / 2.88)
    assert trail.look([1, 4, 8], 1).token_ids == ()


# --- what steps cost -------------------------------------------------------------------------------------------------


def costs_of(**seconds: float) -> StepCosts:
    costs = StepCosts()
    for name, number in seconds.items():
        for _ in range(3):
            costs.take(int(name[1:]), number)
    return costs


def test_steps_cost_what_was_measured_and_between_them_in_proportion():
    costs = costs_of(n1=1.0, n5=3.0)
    assert [costs.seconds(number) for number in (1, 3, 5)] == [1.0, 2.0, 3.0]
    # Beyond the largest the slope goes on, and a token more costs something at least.
    assert costs.seconds(7) == pytest.approx(4.0, rel=0.03)
    assert costs_of(n4=2.0).seconds(8) == pytest.approx(2.08)


def test_of_few_steps_the_half_that_took_longest_does_not_count():
    costs = StepCosts()
    for seconds in (9.0, 1.0, 3.0):
        costs.take(1, seconds)
    assert costs.seconds(1) == 1.0
    costs.take(1, 8.0)
    assert costs.seconds(1) == 2.0


def test_of_the_last_sixteen_steps_a_quarter_does_not_count():
    costs = StepCosts()
    for seconds in [1.0] * 9 + [5.0] * 12 + [50.0] * 4:
        costs.take(1, seconds)
    assert costs.seconds(1) == 5.0
    costs.take(1, 50.0)
    assert costs.seconds(1) == pytest.approx((11 * 5.0 + 50.0) / 12)


def test_what_was_measured_long_before_counts_until_three_new_steps_were():
    costs = costs_of(n1=5.0, n4=1.0)
    for _ in range(64):
        costs.take(4, 1.0)
    found = []
    for _ in range(3):
        costs.take(1, 9.0)
        found.append(costs.seconds(1))
    assert found == [5.0, 5.0, 9.0]


def test_it_is_known_how_long_ago_steps_were_measured():
    costs = costs_of(n1=1.0, n4=1.0)
    costs.take(5, 1.0, 2)
    assert [costs.last_measured(*size) for size in ((1, 0), (4, 0), (5, 2), (5, 0), (4, 2))] == [3, 6, 7, 0, 0]


def test_a_size_that_was_not_seen_for_long_is_not_believed_any_more():
    costs = costs_of(n4=9.0, n1=1.0)
    for _ in range(600):
        costs.take(1, 1.0)
    assert costs.seconds(4) < 1.1


def test_a_clock_that_stands_measures_nothing():
    costs = StepCosts()
    for _ in range(5):
        costs.take(1, 0.0)
    assert not costs.are_known(1)
    assert costs.seconds(1) == 1.0


def test_steps_are_known_by_those_about_as_large_but_no_larger():
    costs = costs_of(n4=1.0, n12=2.0)
    assert [costs.are_known(number) for number in (3, 4, 5, 6, 11, 12, 15, 17)] == [
        *(False, True, True, False),
        *(False, True, True, False),
    ]


def test_steps_that_make_drafts_cost_what_was_measured_of_them():
    costs = costs_of(n1=1.0, n4=1.3)
    # Each draft is taken to cost a little, until it was measured.
    assert costs.seconds(4, 2) == pytest.approx(1.3 * 1.1)
    for _ in range(3):
        costs.take(4, 2.0, 2)
    assert costs.seconds(4, 2) == 2.0
    assert costs.seconds(4) == 1.3
    assert costs.seconds(4, 3) == pytest.approx(2.0 + 0.05 * 1.3)
    assert not costs.are_known(16)
    for _ in range(3):
        costs.take(16, 2.0, 2)
    assert not costs.are_known(16)


# --- which drafts are worth it ---------------------------------------------------------------------------------------


def make_trail(right: float) -> Trail:
    """A trail of a drafter that has been right this often."""
    trail, chooser, token_ids = Trail(FixedDrafter(*[4] * 8)), random.Random(1), [1]
    for _ in range(400):
        trail.look(token_ids, 8)
        token_ids = [*token_ids, 4 if chooser.random() < right else 5]
    trail.look(token_ids, 8)
    return trail


def chosen(*rights: float, room: int = 100, costs: StepCosts, num_rows: int = 0) -> list[int]:
    speculation = Speculation(SpeculationConfig(num_tokens=8), EachByItself(lambda: FixedDrafter(4)))
    speculation.costs = costs
    candidates = [Candidate(make_trail(right), [1] * 500, 50) for right in rights]
    return [len(found) for found in speculation.choose(candidates, num_rows=num_rows or len(rights), room=room)]


def test_where_tokens_cost_nothing_all_drafts_are_taken():
    assert chosen(0.95, costs=costs_of(n1=1.0, n9=1.0)) == [8]


def test_where_a_token_costs_a_step_none_is_taken():
    assert chosen(0.95, costs=costs_of(n1=1.0, n9=9.0)) == [0]


def test_drafts_that_are_seldom_right_are_not_worth_a_little():
    assert chosen(0.02, costs=costs_of(n1=1.0, n9=1.4)) == [0]


def test_the_better_the_chance_the_longer_the_draft():
    lengths = [chosen(right, costs=costs_of(n1=1.0, n9=1.8))[0] for right in (0.1, 0.5, 0.7, 0.98)]
    assert lengths == sorted(lengths)
    assert lengths[0] < 2 < lengths[-1]


def test_drafts_go_to_those_who_have_the_best_chance():
    assert chosen(0.02, 0.98, room=6, costs=costs_of(n2=1.0, n18=1.1)) == [0, 6]


def test_the_room_of_a_step_is_kept_to():
    assert sum(chosen(0.9, 0.9, room=3, costs=costs_of(n2=1.0))) == 3


def test_steps_grow_by_half_where_nothing_is_known_of_larger_ones():
    rights = [0.95] * 16
    assert sum(chosen(*rights, costs=costs_of(n16=1.0))) == 24 - 16
    assert 8 < sum(chosen(*rights, costs=costs_of(n16=1.0, n24=1.0))) <= 36 - 16
    assert sum(chosen(*rights, costs=costs_of(n16=1.0, n24=1.5))) == 0
    assert chosen(0.95, costs=costs_of(n1=1.0)) == [8]


def test_a_step_is_waited_for_where_drafts_would_follow_it():
    def is_worth(right: float, costs: StepCosts) -> bool:
        speculation = Speculation(SpeculationConfig(num_tokens=4), EachByItself(lambda: FixedDrafter(4)))
        speculation.costs = costs
        candidates = [Candidate(make_trail(right), [1] * 500, 50)]
        return speculation.is_worth_waiting(candidates, num_rows=1, room=50)

    assert is_worth(0.95, costs_of(n1=1.0, n5=1.1))
    # Four in ten are right: enough for drafts after a token that is known, and too few after one that is not.
    assert chosen(0.4, costs=costs_of(n1=1.0, n9=3.0)) != [0]
    assert not is_worth(0.4, costs_of(n1=1.0, n9=3.0))
    assert not is_worth(0.02, costs_of(n1=1.0, n5=1.1))
    assert not is_worth(0.95, costs_of(n1=1.0, n5=5.0))


def choice(right: float, costs: StepCosts, *, room: int = 50, num_rows: int = 1, adaptive: bool = True) -> int:
    """Drafts that a model is asked for, which has been right this often."""
    trail, chooser, token_ids = Trail(), random.Random(1), [1]
    for _ in range(400):
        trail.take(Draft([4]), token_ids)
        token_ids = [*token_ids, 4 if chooser.random() < right else 5]
    trail.look(token_ids, 1)
    speculation = Speculation(SpeculationConfig(method="mtp", num_tokens=8, adaptive=adaptive))
    speculation.costs = costs
    return speculation.choose_next([Candidate(trail, token_ids, 50)] * num_rows, num_rows=num_rows, room=room).number


def made(costs: StepCosts, seconds: float) -> StepCosts:
    """Each draft takes so long to make."""
    for number in range(1, 9):
        for _ in range(3):
            costs.take(1 + number, 1.0 + number * seconds, number)
    return costs


def test_a_model_is_asked_for_as_many_drafts_as_its_chance_and_its_cost_allow():
    lengths = [choice(right, made(costs_of(n1=1.0), 0.15)) for right in (0.05, 0.5, 0.7, 0.99)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0 < lengths[1] < lengths[2] < lengths[3] == 8
    assert choice(0.99, made(costs_of(n1=1.0), 1.1)) == 0


def test_a_model_is_asked_for_no_more_than_the_next_step_has_room_for():
    assert choice(0.99, made(costs_of(n1=1.0), 0.0), room=3) == 3
    assert choice(0.99, made(costs_of(n2=1.0), 0.0), room=9, num_rows=2) == 4


def test_a_model_is_asked_for_nothing_before_it_is_known_what_steps_without_cost():
    assert choice(0.99, StepCosts()) == 0
    assert choice(0.01, StepCosts(), adaptive=False) == 8


# --- statistics ------------------------------------------------------------------------------------------------------


def test_drafts_are_counted_by_position():
    statistics = DraftStatistics(3)
    for counts in ((3, 2), (3, 0), (1, 1)):
        statistics.take(*counts)
    assert (statistics.num_drafts, statistics.total_draft_tokens, statistics.total_accepted_tokens) == (3, 7, 3)
    assert statistics.accepted_by_position == [2, 1, 0]
    assert statistics.acceptance_rate == pytest.approx(3 / 7)
    assert DraftStatistics(1).acceptance_rate == 0.0


def test_every_thousand_draft_tokens_are_a_line_in_the_log(caplog):
    statistics = DraftStatistics(4)
    with caplog.at_level("INFO", logger="atom_core.speculation.statistics"):
        for _ in range(600):
            statistics.take(4, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "speculation: 500 of 1000 draft tokens accepted (50.00%), by position 1.00 1.00 0.00 0.00",
        "speculation: 1000 of 2000 draft tokens accepted (50.00%), by position 1.00 1.00 0.00 0.00",
    ]
