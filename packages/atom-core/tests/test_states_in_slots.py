"""Requests hold one slot each in the layers that keep a state, and no slot is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from atom_core.config.options import ConfigError
from atom_core.kv_cache import KVCacheConfig, PagedCache
from atom_kernels.protocols import Pages, Slots

GROUPS = (Pages(), Slots())


def make_cache(num_slots: int = 2) -> PagedCache:
    config = KVCacheConfig(num_blocks=8, block_size=4, groups=GROUPS, num_slots=num_slots, enable_prefix_caching=False)
    return PagedCache(config, max_step_tokens=16)


def admit(cache: PagedCache, num_tokens: int = 5):
    table = cache.make_table("")
    found = cache.admit(table, [7] * num_tokens, use_prefix=False, max_tokens=num_tokens, reserve=0, count=True)
    return None if found is None else table


def test_a_request_is_told_one_slot_and_the_blocks_of_its_tokens():
    cache = make_cache()
    table = admit(cache)
    assert [len(ids) for ids in table.take_news()] == [2, 1]
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
    assert (cache.slots.num_free, cache.pool.num_free) == (2, 8)


def test_a_cache_of_states_without_slots_is_refused():
    with pytest.raises(ValueError, match="num_slots is 0"):
        make_cache(num_slots=0)


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_drafts_behind_states_are_refused_by_name(tiny_family: Callable[[str], Path], make_engine, method: str):
    with pytest.raises(ConfigError, match=f"method {method} is not supported with Qwen3NextForCausalLM"):
        make_engine(tiny_family("qwen3_next"), method=method)
