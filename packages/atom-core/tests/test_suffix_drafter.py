"""What suffix lookup proposes, from a request and from earlier outputs of its salt, and what it keeps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from atom_core.speculation import Draft, SuffixConfig, make_speculation
from atom_core.speculation.config import SpeculationConfig
from atom_core.speculation.suffix import drafter as drafter_module
from atom_core.speculation.suffix import index as index_module
from atom_core.speculation.suffix import past_outputs as past_module
from atom_core.speculation.suffix.drafter import SuffixDrafter
from atom_core.speculation.suffix.drafters import SuffixDrafters
from atom_core.speculation.suffix.index import SuffixIndex
from atom_core.speculation.suffix.past_outputs import PastOutputs


def guess(token_ids: list[int], num_tokens: int = 8, **config: Any) -> list[int]:
    return list(SuffixDrafter(SuffixConfig(**config)).propose(token_ids, num_tokens).token_ids)


def with_past(*outputs: list[int], salt: str = "", **config: Any) -> SuffixDrafters:
    drafters = SuffixDrafters(SuffixConfig(**config))
    for output in outputs:
        drafters.take_output(salt, output)
    return drafters


# --- how it guesses --------------------------------------------------------------------------------------------------


def test_what_followed_most_often_is_guessed_though_something_else_followed_last():
    text = [1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2]
    assert guess(text, 1) == [7]
    assert guess([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_a_longer_agreement_has_more_drafts():
    text = list(range(10, 40))
    for length in (2, 3, 5, 8):
        # No token before those that agree is the same.
        assert guess([*text, 5, *text[4 : 4 + length]], 16) == text[4 + length : 4 + 2 * length]
    assert len(guess([*text, 5, *text[4:12]], 16, max_spec_factor=0.5)) == 4
    assert len(guess([*text, 5, *text[4:12]], 3)) == 3


def test_tokens_that_agree_and_drafts_are_no_more_than_the_depth_of_the_tree():
    text = list(range(10, 90))
    assert len(guess([*text, *text[:40]], 16)) == 12
    assert len(guess([*text, *text[:40]], 16, max_tree_depth=10)) == 5
    assert len(guess([*text, *text[:40]], 16, max_tree_depth=12, max_spec_factor=2.0)) == 8


def test_drafts_end_where_too_few_of_the_places_went_that_way():
    ways = [[1, 2, 3, 4, 10 + way] for way in range(4)]
    text = [token for way in ways for token in way] + [1, 2]
    assert guess(text, 4, max_spec_factor=2.0, min_token_prob=0.5) == [3, 4]
    assert guess(text, 4, max_spec_factor=2.0, min_token_prob=0.2)[:3] == [3, 4, 13]


def test_a_short_agreement_that_is_sure_of_more_goes_before_a_longer_one():
    often = [token for first in (20, 21, 22, 23, 24, 25) for token in (first, 2, 3, 4, 5)]
    text = [9, 2, 3, 8, 9, 2, 3, 7, *often, 9, 2, 3]
    # After 9, 2, 3 came 8 once and 7 once; after 2, 3 came 4, 5 in six of eight places.
    assert guess(text, 2, min_token_prob=0.6) == [4, 5]
    assert guess(text[:4] + text[8:], 2, min_token_prob=0.6) == [8, 20]


def test_a_circle_goes_on_behind_the_end():
    assert guess([5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6], 7) == [7, 5, 6, 7, 5, 6, 7]


def test_nothing_is_guessed_where_nothing_agrees():
    for text in ([], [1], [1, 2], [1, 2, 3, 4], [3, 1, 4, 1, 5]):
        assert guess(text) == []


def longest_agreement(text: list[int], end: list[int], most: int) -> int:
    """The longest agreement, found by looking at every place but the last, behind which nothing stands."""
    best = 0
    for place in range(len(text) - 1):
        length = 0
        while length < min(most, place + 1, len(end)) and text[place - length] == end[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@pytest.mark.parametrize("num_kinds", [2, 5, 40])
def test_the_longest_agreement_there_is_is_found(monkeypatch, num_kinds):
    monkeypatch.setattr(index_module, "MOST_COMPARED", 10**6)
    chooser, index = random.Random(3), SuffixIndex(10**6)
    text: list[int] = []
    for _ in range(150):
        start = chooser.randrange(len(text) + 1)
        more = [*text[start : start + chooser.randrange(12)], chooser.randrange(num_kinds)]
        text += more
        index.extend(more)
        index.catch_up(10**6)
        found = max((place.length for place in index.places(text, 24)), default=0)
        expected = longest_agreement(text, text, 24)
        assert found == (expected if expected >= 2 else 0)


def test_all_that_is_guessed_stands_behind_what_agrees():
    chooser = random.Random(6)
    text = [chooser.randrange(9) for _ in range(400)]
    drafter = SuffixDrafter(SuffixConfig())
    for length in range(400):
        draft = drafter.propose(text[:length], 1)
        if draft.token_ids:
            wanted = [*text[length - 2 : length], draft.token_ids[0]]
            assert any(text[place : place + 3] == wanted for place in range(length - 2))


def test_levels_grow_with_the_agreement_and_tell_outputs_of_others_apart():
    text = list(range(10, 40))
    levels = [
        SuffixDrafter(SuffixConfig()).propose([*text, 5, *text[4 : 4 + length]], 4).level for length in (2, 3, 4, 9)
    ]
    assert levels == [4, 4, 6, 8]
    drafter = with_past(text).start("")
    assert drafter.propose([5, *text[4:8]], 4).level == 7


# --- earlier outputs -------------------------------------------------------------------------------------------------


def test_an_output_serves_later_requests_of_its_salt_and_no_others():
    drafters = with_past([11, 12, 13, 14], salt="mine")
    assert drafters.start("mine").propose([1, 11, 12], 2) == Draft([13, 14], 5)
    assert drafters.start("yours").propose([1, 11, 12], 2).token_ids == ()
    assert drafters.start("").propose([1, 11, 12], 2).token_ids == ()


def test_an_output_serves_requests_that_began_before_it_ended():
    drafters = with_past()
    drafter = drafters.start("a")
    assert drafter.propose([1, 11, 12], 2).token_ids == ()
    drafters.take_output("a", [11, 12, 13, 14])
    assert drafter.propose([1, 11, 12], 2).token_ids == [13, 14]


def test_no_draft_goes_from_one_output_into_the_next():
    drafters = with_past([7, 11, 12], [13, 14, 15], [8, 11, 12], [13, 14, 15])
    assert drafters.start("").propose([11, 12], 4).token_ids == ()
    # Nor do tokens agree with those before an output.
    assert drafters.start("").propose([12, 13], 4).token_ids == ()


def test_the_request_itself_goes_before_others_that_say_no_more():
    drafters = with_past([11, 12, 13, 14])
    assert drafters.start("").propose([11, 12, 20, 21, 11, 12], 2).token_ids == [20, 21]
    assert drafters.start("").propose([5, 12, 20, 21, 10, 11, 12], 2).token_ids == [13, 14]


def test_without_room_for_outputs_none_is_kept():
    drafters = with_past([11, 12, 13, 14], max_cached_requests=0)
    assert drafters.num_kept_tokens == 0
    assert drafters.start("").propose([11, 12], 2).token_ids == ()


def test_of_too_many_outputs_the_salt_that_was_unused_for_longest_is_forgotten():
    past = PastOutputs(3)
    for salt in ("a", "b", "c"):
        past.add(salt, [1, 2, 3])
    assert past.of("a") is not None
    past.add("d", [1, 2, 3])
    assert [past.of(salt) is not None for salt in ("a", "b", "c", "d")] == [True, False, True, True]
    assert (past.num_outputs, past.num_tokens) == (3, 12)


def test_of_too_many_outputs_of_one_salt_the_earlier_half_is_forgotten():
    past = PastOutputs(4)
    for number in range(40):
        past.add("a", [number, number + 1, 3])
        assert past.num_outputs <= 4
        index = past.of("a")
        assert index is not None
        assert past.num_tokens == len(index.tokens) <= 16
        assert list(index.tokens[-4:]) == [number, number + 1, 3, -1]


def test_tokens_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(past_module, "MOST_TOKENS", 300)
    monkeypatch.setattr(past_module, "MOST_OF_ONE", 100)
    past, chooser = PastOutputs(10**6), random.Random(1)
    for _ in range(200):
        past.add(f"salt {chooser.randrange(9)}", [chooser.randrange(50) for _ in range(chooser.randrange(1, 180))])
        kept = [past.of(f"salt {number}") for number in range(9)]
        lengths = [len(index.tokens) for index in kept if index is not None]
        assert past.num_tokens == sum(lengths) <= 300
        assert max(lengths) <= 100
        assert past.num_outputs == sum(index.tokens.count(-1) for index in kept if index is not None)
    past.forget()
    assert (past.num_tokens, past.num_outputs) == (0, 0)


def test_what_is_kept_takes_28_bytes_a_token():
    index = SuffixIndex(10**6)
    for _ in range(100):
        index.extend(range(100))
        index.catch_up(10**6)
    arrays = [index.tokens, *[array for chain in index._chains for array in (chain._last, chain._before)]]
    assert sum(len(array) * array.itemsize for array in arrays) <= 28 * 10_000


def test_a_token_becomes_a_place_a_bounded_number_of_times(monkeypatch):
    """Counted: what is hashed for n tokens, and for 4 n."""
    hashed: list[int] = []
    key = index_module._Chain._key
    monkeypatch.setattr(index_module._Chain, "_key", lambda self, tokens: hashed.append(1) or key(self, tokens))

    def count(num_tokens: int) -> int:
        hashed.clear()
        drafter = SuffixDrafter(SuffixConfig())
        text = [number * 7919 % 1009 for number in range(num_tokens)]
        for length in range(1, num_tokens + 1):
            drafter.propose(text[:length], 4)
        return len(hashed)

    assert count(8000) <= 4.5 * count(2000) <= 4.5 * 2000 * 8


def test_a_long_prompt_becomes_places_over_some_calls(monkeypatch):
    monkeypatch.setattr(drafter_module, "MOST_INDEXED", 100)
    text = [7, 8, 9, *range(100, 1100), 7, 8]
    drafter = SuffixDrafter(SuffixConfig())
    for call in range(1, 12):
        assert [len(chain._before) for chain in drafter._own._chains] == [min(100 * (call - 1), 1004)] * 2
        drafter.propose(text, 1)
    assert drafter.propose(text, 1).token_ids == [9]


def test_of_a_text_beyond_all_bounds_the_later_half_is_known(monkeypatch):
    monkeypatch.setattr(drafter_module, "MOST_LOOKED_BACK", 200)
    text = [*range(1000, 1150), *range(2000, 2100)]
    drafter = SuffixDrafter(SuffixConfig())
    assert drafter.propose([*text, 1010, 1011], 1).token_ids == ()
    assert drafter.propose([*text, 1010, 1011, 2010, 2011], 1).token_ids == [2012]
    assert len(drafter._own.tokens) <= 200


def test_what_is_looked_back_to_and_kept_is_what_the_documentation_says():
    assert (drafter_module.MOST_LOOKED_BACK, past_module.MOST_OF_ONE, past_module.MOST_TOKENS) == (
        131_072,
        131_072,
        1_048_576,
    )


def test_an_engine_looks_up_suffixes_as_its_settings_say():
    config = SuffixConfig(max_cached_requests=1, max_spec_factor=0.5)
    speculation = make_speculation(SpeculationConfig(method="suffix", num_tokens=16, suffix=config))
    assert speculation is not None
    speculation.take_output("a", [1, 2, 3, 4, 5, 6])
    speculation.take_output("a", [7, 2, 3, 4, 5, 6])
    assert speculation.num_kept_tokens == 7
    trail = speculation.start_trail("a")
    assert trail.look([7, 2, 3, 4], 16).token_ids == [5, 6]
    speculation.forget()
    assert speculation.num_kept_tokens == 0
    assert speculation.start_trail("a").look([7, 2, 3, 4], 16).token_ids == ()
