"""The prefix cache: what is shared, what never is, and how blocks are named."""

from __future__ import annotations

import gc
import struct

import pytest
import xxhash

from atom_core.kv_cache import BlockTable, KVCacheConfig, PagedCache, make_block_hasher, pack_token_ids

BLOCK_SIZE = 2


def make_cache(**overrides):
    hasher = overrides.pop("hasher", None)
    return PagedCache(
        KVCacheConfig(**{"num_blocks": 16, "block_size": BLOCK_SIZE} | overrides), hasher, max_step_tokens=1
    )


def admit(cache, token_ids, *, salt="", computed=True):
    """A request of these tokens: its table, and how many of them were found."""
    table = BlockTable(salt)
    num_found = cache.admit(table, token_ids, use_prefix=True, max_tokens=len(token_ids), reserve=0, count=True)
    if computed:
        cache.publish(table, token_ids, len(token_ids))
    return table, num_found


def test_full_blocks_of_an_equal_beginning_are_shared():
    cache = make_cache()
    first, _ = admit(cache, [1, 2, 3, 4, 5, 6])
    second, num_found = admit(cache, [1, 2, 3, 4, 9, 9])
    assert num_found == 4
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]


def test_blocks_computed_after_found_ones_are_found_with_them():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4, 5])
    admit(cache, [1, 2, 3, 4, 5, 6])
    assert admit(cache, [1, 2, 3, 4, 5, 6, 7])[1] == 6


def test_at_least_one_token_is_computed():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4])
    assert admit(cache, [1, 2, 3, 4])[1] == 2


def test_blocks_that_are_not_computed_are_not_found():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4, 5], computed=False)
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 0


def test_blocks_are_found_after_their_request_has_gone():
    cache = make_cache()
    table, _ = admit(cache, [1, 2, 3, 4, 5])
    cache.release(table)
    assert cache.pool.num_free == 16
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 4


def test_blocks_in_the_middle_are_not_found_without_the_beginning():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4, 5])
    assert admit(cache, [9, 9, 3, 4, 5])[1] == 0


def test_names_that_cover_the_next_token_wait_for_it_and_part_those_who_go_on_otherwise():
    cache = make_cache(names_cover_next=True)
    first, _ = admit(cache, [1, 2, 3, 4])
    assert first.num_published == 1
    cache.publish(first, [1, 2, 3, 4, 5], 4)
    assert first.num_published == 2
    assert admit(cache, [1, 2, 3, 4, 5, 6], computed=False)[1] == 4
    assert admit(cache, [1, 2, 3, 4, 9, 9], computed=False)[1] == 2
    assert admit(cache, [1, 2, 9, 9, 9, 9], computed=False)[1] == 0


def test_names_that_cover_the_next_token_are_compared_with_it_whatever_their_hash():
    cache = make_cache(names_cover_next=True, hasher=lambda prefix, data: b"same")
    admit(cache, [1, 2, 3])
    assert admit(cache, [1, 2, 9], computed=False)[1] == 0
    assert admit(cache, [1, 2, 3], computed=False)[1] == 2


def test_a_salt_keeps_requests_apart():
    cache = make_cache()
    admit(cache, [1, 2, 3], salt="one")
    assert admit(cache, [1, 2, 3], salt="two")[1] == 0
    assert admit(cache, [1, 2, 3])[1] == 0
    assert admit(cache, [1, 2, 3], salt="one")[1] == 2


def test_a_salt_of_any_characters_is_taken():
    cache = make_cache()
    admit(cache, [1, 2, 3], salt="\ud800 ü \x00")
    assert admit(cache, [1, 2, 3], salt="\ud800 ü \x00")[1] == 2


def test_equal_hashes_of_different_tokens_share_nothing():
    cache = make_cache(hasher=lambda prefix, data: b"")
    first, _ = admit(cache, [1, 2, 3])
    second, num_found = admit(cache, [4, 5, 6])
    assert num_found == 0
    assert not set(first.block_ids) & set(second.block_ids)


def test_equal_hashes_of_different_salts_share_nothing():
    cache = make_cache(hasher=lambda prefix, data: b"")
    admit(cache, [1, 2, 3], salt="one")
    assert admit(cache, [1, 2, 3], salt="two")[1] == 0


def test_equal_hashes_and_tokens_after_a_different_beginning_share_nothing():
    """Each block's hash is that of its own tokens alone: only the comparison with the parent tells them apart."""
    cache = make_cache(hasher=lambda prefix, data: data)
    admit(cache, [1, 2, 3, 4, 5])
    assert admit(cache, [6, 7, 3, 4, 5])[1] == 0


def test_a_block_is_not_found_behind_new_content_in_its_parents_place():
    cache = make_cache(num_blocks=3, hasher=lambda prefix, data: data)
    table, _ = admit(cache, [1, 2, 3, 4])
    parent, child = table.block_ids
    cache.release(table)
    cache.pool.retain([child])  # keeps the child cached while its parent is overwritten
    overwriting, _ = admit(cache, [8, 9, 7, 7])
    assert parent in overwriting.block_ids
    cache.pool.release([child])
    cache.release(overwriting)
    assert admit(cache, [8, 9, 3, 4, 5])[1] <= 2


def test_a_refused_request_changes_nothing():
    cache = make_cache(num_blocks=4)
    admit(cache, [1, 2, 3, 4, 5])
    table, num_found = admit(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9], computed=False)
    assert num_found is None
    assert (table.block_ids, cache.pool.num_free, cache.num_queries) == ([], 1, 5)


def test_found_blocks_that_nobody_holds_count_as_taken_from_the_free_ones():
    cache = make_cache(num_blocks=4)
    table, _ = admit(cache, [1, 2, 3, 4])
    cache.release(table)
    admit(cache, [9])
    assert admit(cache, [1, 2, 3, 4, 5, 6, 7], computed=False)[1] is None


def test_the_tokens_looked_up_and_found_are_counted():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4, 5])
    admit(cache, [1, 2, 3, 9])
    assert (cache.num_queries, cache.num_hits) == (9, 2)


def test_a_look_up_after_a_preemption_is_not_counted():
    cache = make_cache()
    admit(cache, [1, 2, 3, 4, 5])
    again = cache.admit(BlockTable(), [1, 2, 3, 9], use_prefix=True, max_tokens=4, reserve=0, count=False)
    assert (again, cache.num_queries, cache.num_hits) == (2, 5, 0)


def test_every_full_block_is_hashed_once():
    hashed = []

    def hasher(prefix, data):
        hashed.append(data)
        return prefix + data

    cache = make_cache(num_blocks=5, hasher=hasher)
    admit(cache, [7, 8, 9])
    table = BlockTable()
    token_ids = [1, 2, 3, 4, 5, 6]
    for _ in range(3):
        cache.admit(table, token_ids, use_prefix=True, max_tokens=8, reserve=3, count=True)
    cache.admit(table, token_ids, use_prefix=True, max_tokens=8, reserve=0, count=True)
    for num_computed in range(1, 7):
        cache.publish(table, token_ids, num_computed)
    assert hashed == [pack_token_ids(ids) for ids in ([7, 8], [1, 2], [3, 4], [5, 6])]


def test_a_long_prompt_whose_beginning_is_not_known_is_not_named_to_its_end_before_it_is_computed():
    cache = make_cache(num_blocks=2000)
    token_ids = list(range(3000))
    table, _ = admit(cache, token_ids, computed=False)
    assert len(table.hashes) == 256
    cache.publish(table, token_ids, 3000)
    assert len(table.hashes) == 1500
    assert admit(cache, [*token_ids, 0])[1] == 3000


def test_xxhash64_chains_the_hash_before_and_little_endian_int64_token_ids():
    hasher = make_block_hasher("xxhash64")
    first = xxhash.xxh64_intdigest(struct.pack("<2q", 1, 2))
    second = xxhash.xxh64_intdigest(struct.pack("<Q", first) + struct.pack("<2q", 3, 4))
    chained = hasher(hasher(b"", pack_token_ids([1, 2])), pack_token_ids([3, 4]))
    assert int.from_bytes(chained, "little") == second


def test_sha256_names_differ_between_processes():
    assert make_block_hasher("sha256")(b"", b"x") != make_block_hasher("sha256")(b"", b"x")


@pytest.mark.parametrize("prefix_hash", ["xxhash64", "sha256"])
def test_both_hashes_find_what_they_name(prefix_hash):
    cache = make_cache(prefix_hash=prefix_hash)
    admit(cache, [1, 2, 3, 4, 5])
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 4


def test_nothing_is_found_after_all_was_forgotten_and_what_comes_later_is():
    cache = make_cache()
    gone, _ = admit(cache, [1, 2, 3, 4, 5])
    cache.release(gone)
    running, _ = admit(cache, [7, 8, 9, 10, 11])
    cache.forget_prefixes()
    assert cache.pool.num_vacant == cache.pool.num_free == 16 - 3
    assert not cache._prefixes._by_hash
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 0
    assert admit(cache, [7, 8, 9, 10, 11])[1] == 0
    assert admit(cache, [1, 2, 3, 4, 5])[1] == admit(cache, [7, 8, 9, 10, 11])[1] == 4
    assert len(running.block_ids) == 3


def test_blocks_of_a_request_that_was_running_when_all_was_forgotten_are_given_back():
    cache = make_cache()
    running, _ = admit(cache, [1, 2, 3, 4, 5], computed=False)
    cache.publish(running, [1, 2, 3, 4, 5], 2)
    cache.forget_prefixes()
    cache.publish(running, [1, 2, 3, 4, 5], 5)
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 0
    cache.forget_prefixes()
    cache.release(running)
    again, num_found = admit(cache, [1, 2, 3, 4, 5])
    assert num_found == 0
    cache.release(again)
    assert cache.pool.num_free == 16 - 3


def test_without_prefix_caching_nothing_is_found_or_counted():
    cache = make_cache(enable_prefix_caching=False)
    admit(cache, [1, 2, 3])
    assert admit(cache, [1, 2, 3])[1] == 0
    assert cache.num_queries == 0


@pytest.mark.parametrize("wrong", [{"num_blocks": 0}, {"block_size": -1}, {"prefix_hash": "md5"}])
def test_a_cache_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_cache(**wrong)


def test_the_garbage_collector_goes_through_one_object_for_each_cached_block():
    cache = make_cache(num_blocks=2000, block_size=16)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(10):
        table, _ = admit(cache, list(range(number, number + 1600)))
        cache.release(table)
    del table
    gc.collect()
    assert 1000 <= len(gc.get_objects()) - before < 1100


def test_a_chain_of_prefixes_of_any_length_is_let_go():
    num_blocks = 150_000
    cache = make_cache(num_blocks=num_blocks, block_size=1, prefix_hash="xxhash64")
    table, _ = admit(cache, list(range(num_blocks)))
    cache.release(table)
    cache.forget_prefixes()
    assert cache.pool.num_free == num_blocks
