"""The block pool: who holds what, which block goes next, and how long the runs are."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from atom_core.kv_cache import BlockPool
from atom_core.kv_cache.vacant_runs import VacantRuns


def make_pool_of_cached(*block_ids, num_blocks=8):
    """All blocks free: those given are cached, unused for longest first; `evicted` collects evictions."""
    evicted = []
    pool = BlockPool(num_blocks, on_evict=evicted.append)
    pool.allocate(num_blocks)
    for block_id in block_ids:
        pool.set_cached(block_id, True)
        pool.release([block_id])
    pool.release([block_id for block_id in range(num_blocks) if block_id not in block_ids])
    return pool, evicted


def num_runs(block_ids):
    return 1 + sum(second != first + 1 for first, second in pairwise(block_ids))


def test_a_prompt_gets_adjacent_blocks():
    assert BlockPool(10).allocate(4) == [0, 1, 2, 3]


def test_a_growing_request_gets_its_neighbor():
    pool = BlockPool(64)
    first = pool.allocate(4, room=12)
    second = pool.allocate(4, room=12)
    for _ in range(12):
        first += pool.allocate(1, after=first[-1], room=4)
        second += pool.allocate(1, after=second[-1], room=4)
    assert num_runs(first) == num_runs(second) == 1


def test_too_many_blocks_are_refused_and_nothing_changes():
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(ValueError, match="3 blocks were asked for, 2 of 3 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_a_block_returns_when_its_last_holder_lets_go():
    pool = BlockPool(4)
    block_ids = pool.allocate(2)
    pool.retain(block_ids)
    pool.release(block_ids)
    assert pool.num_free == 2
    pool.release(block_ids)
    assert pool.num_free == 4


def test_a_block_released_too_often_is_an_error():
    with pytest.raises(ValueError, match="block 2 was released more often than it was held"):
        BlockPool(4).release([2])


def test_vacant_blocks_go_before_cached_ones():
    pool, evicted = make_pool_of_cached(0, 1, 2, 3)
    assert pool.allocate(4) == [4, 5, 6, 7]
    assert evicted == []


def test_of_cached_blocks_the_one_unused_for_longest_goes_first():
    pool, evicted = make_pool_of_cached(5, 2, 7, 0, num_blocks=8)
    pool.allocate(6)
    assert evicted == [5, 2]


def test_the_end_of_a_table_is_evicted_before_its_beginning():
    pool, evicted = make_pool_of_cached(num_blocks=3)
    table = pool.allocate(3)
    for block_id in table:
        pool.set_cached(block_id, True)
    pool.release(table)
    pool.allocate(1)
    assert evicted == [table[-1]]


def test_old_neighbors_are_evicted_together():
    pool, evicted = make_pool_of_cached(4, 0, 3, 5, 1, 2, 6, 7)
    assert sorted(pool.allocate(3)) == [3, 4, 5]
    assert evicted == [4, 3, 5]


def test_blocks_that_become_vacant_with_an_evicted_neighbor_are_part_of_its_run():
    pool, evicted = make_pool_of_cached(4, 3, 5, 6, 2, 0, 1, 7)
    lost_with = {4: 5, 3: 6}

    def on_evict(block_id):
        evicted.append(block_id)
        pool.set_cached(lost_with[block_id], False)

    pool._on_evict = on_evict
    assert pool.allocate(4) == [3, 4, 5, 6]
    assert evicted == [4, 3]


def test_recently_used_neighbors_are_kept():
    pool, evicted = make_pool_of_cached(4, 0, 2, 6, 1, 7, 3, 5)
    pool.allocate(2)
    assert evicted == [4, 0]


def test_a_growing_request_evicts_no_neighbor_while_a_vacant_run_has_room_for_it():
    pool, evicted = make_pool_of_cached(1, 2, num_blocks=12)
    assert pool.allocate(1, after=-1) == [0]
    assert pool.allocate(1, after=0, room=4) == [5]
    assert evicted == []
    assert pool.allocate(1, after=0, room=7) == [1]
    assert evicted == [1]


def test_requests_get_few_runs_after_many_others_have_come_and_gone():
    random = Random(0)
    pool = BlockPool(512)
    live, all_runs = [], []
    for _ in range(400):
        table = pool.allocate(random.randint(4, 24), room=8)
        for room in reversed(range(8)):
            table += pool.allocate(1, after=table[-1], room=room)
        all_runs.append(num_runs(table))
        live.append(table)
        if len(live) > 10:
            table = live.pop(random.randrange(len(live)))
            for block_id in table[:-1]:
                pool.set_cached(block_id, True)
            pool.release(table)
    assert sum(all_runs[200:]) / 200 < 4


def test_a_cached_block_that_is_held_again_is_not_evicted():
    pool, evicted = make_pool_of_cached(*range(8))
    pool.retain([0])
    pool.allocate(7)
    assert evicted == [1, 2, 3, 4, 5, 6, 7]
    assert pool.num_free == 0


def test_a_free_block_that_loses_its_name_is_vacant():
    pool, _ = make_pool_of_cached(1, 2, num_blocks=4)
    pool.set_cached(1, False)
    assert pool.num_vacant == 3


@settings(max_examples=100, deadline=None)
@given(data=st.data(), num_blocks=st.integers(1, 24))
def test_runs_are_maximal_and_hold_exactly_the_vacant_blocks(data, num_blocks):
    runs = VacantRuns(num_blocks)
    vacant = set(range(num_blocks))
    for _ in range(data.draw(st.integers(0, 120))):
        if vacant and data.draw(st.booleans()):
            start, end = runs.longest()
            assert set(range(start, end)) <= vacant
            assert not {start - 1, end} & vacant
            first = data.draw(st.integers(start, end - 1))
            count = data.draw(st.integers(1, end - first))
            runs.take(start, first, count)
            vacant -= set(range(first, first + count))
        elif len(vacant) < num_blocks:
            block_id = data.draw(st.sampled_from(sorted(set(range(num_blocks)) - vacant)))
            runs.add(block_id, block_id + 1)
            vacant.add(block_id)
        assert len(runs) == len(vacant)
        lengths = [runs.length_at(start) for start in range(num_blocks)]
        assert sum(lengths) == len(vacant)
        if vacant:
            start, end = runs.longest()
            assert end - start == max(lengths)
