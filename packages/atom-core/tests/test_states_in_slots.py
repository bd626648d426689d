"""Requests hold one slot each in the layers that keep a state, and no slot is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from atom_core.config.options import ConfigError
from atom_core.kv_cache import KVCacheConfig, PagedCache
from atom_kernels.protocols import Pages, Slots


def make_cache(num_slots: int = 2, slots_each: int = 1) -> PagedCache:
    groups = (Pages(), Slots(slots_each))
    config = KVCacheConfig(num_blocks=8, block_size=4, groups=groups, num_slots=num_slots, enable_prefix_caching=False)
    return PagedCache(config, max_step_tokens=16)


def admit(cache: PagedCache, token_ids: Sequence[int] = (7,) * 5):
    table, tokens = cache.make_table(""), list(token_ids)
    use_prefix = cache.config.enable_prefix_caching
    found = cache.admit(table, tokens, use_prefix=use_prefix, max_tokens=len(tokens), reserve=0, count=True)
    return None if found is None else table


def test_a_request_is_told_one_slot_and_the_blocks_of_its_tokens():
    cache = make_cache()
    table = admit(cache)
    assert [len(ids) for ids in table.take_new_blocks()] == [2, 1]
    assert table.slot in (1, 2)
    assert table.num_held == 2


def test_a_request_waits_while_no_slot_is_free():
    cache = make_cache()
    first, second = admit(cache), admit(cache)
    assert admit(cache) is None
    assert first.slot != second.slot
    cache.release(first)
    assert admit(cache).slot != second.slot


def test_all_slots_and_blocks_are_back_when_requests_have_ended():
    cache = make_cache()
    for table in [admit(cache), admit(cache)]:
        cache.grow(table, 9, 16)
        cache.release(table)
    assert (cache.states.slots.num_free, cache.pool.num_free) == (2, 8)


def test_a_cache_of_states_without_slots_is_refused():
    with pytest.raises(ValueError, match="num_slots is 0"):
        make_cache(num_slots=0)


def test_a_request_holds_a_slot_for_each_draft_and_one():
    cache = make_cache(num_slots=8, slots_each=4)
    first, second = admit(cache), admit(cache)
    assert [first.slot, second.slot] == [1, 5]
    assert admit(cache) is None
    assert first.take_new_blocks() == [[*first.block_ids], [1]]
    cache.release(first)
    assert admit(cache).slot == 1


def test_a_state_behind_a_prefix_goes_to_the_slot_of_its_number_of_tokens():
    """Slots take turns, so the state behind 4 tokens is in the second of three, and that behind 8 in the third."""
    config = KVCacheConfig(num_blocks=8, block_size=4, groups=(Pages(), Slots(3)), num_slots=6, num_snapshots=2)
    cache = PagedCache(config, max_step_tokens=16)
    tokens = list(range(9))
    before = admit(cache, token_ids=tokens)
    kept = [cache.states.keep(before, num_tokens) for num_tokens in (4, 8)]
    assert [source - before.slot for source, _ in kept] == [1, 2]
    cache.publish(before, tokens, 9)
    after = admit(cache, token_ids=tokens)
    assert cache.states.take_copies() == [(kept[1][1], after.slot + 2)]


@pytest.mark.parametrize("slots_each", [0, 17])
def test_slots_for_no_state_and_for_more_than_are_computed_token_by_token_are_refused(slots_each: int):
    with pytest.raises(ValueError, match=f"slots_each is {slots_each}; a request holds from 1 to 16 slots"):
        Slots(slots_each)


def test_groups_whose_requests_hold_other_numbers_of_slots_are_refused():
    with pytest.raises(ValueError, match="different numbers of slots"):
        KVCacheConfig(num_blocks=8, block_size=4, groups=(Slots(2), Slots(3)), num_slots=6, num_snapshots=1)


def test_a_draft_more_than_there_are_states_is_refused_by_name(tiny_family: Callable[[str], Path], make_engine):
    folder = tiny_family("qwen3_next")
    with pytest.raises(ConfigError, match="num_speculative_tokens is 16; Qwen3NextForCausalLM keeps a state for each"):
        make_engine(folder, method="ngram", num_speculative_tokens=16)
    make_engine(folder, method="ngram", num_speculative_tokens=15)
