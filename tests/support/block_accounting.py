"""Who holds each block of a scheduler's cache, counted from the tables of its requests."""

from __future__ import annotations

from collections import Counter

from atom_core.scheduler import Scheduler


def check_blocks(scheduler: Scheduler) -> None:
    """Every block is free or held, as often as tables say (those on their way back included)."""
    cache = scheduler._cache
    tables = [request.block_table.held() for request in scheduler._book.running]
    tables += [block_ids for returning in cache._returning.values() for block_ids in returning]
    if cache._loads is not None:
        tables += cache._loads._given_up.values()
    holders = Counter(block_id for block_ids in tables for block_id in block_ids)
    assert [cache.pool.num_holders(i) for i in range(cache.pool.num_blocks)] == [
        holders[i] for i in range(cache.pool.num_blocks)
    ]
    assert cache.pool.num_free == cache.pool.num_blocks - len(holders)
