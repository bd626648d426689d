"""Groups of layers in one pool: what a window gives back, what it leaves to be found, and that tokens never change."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from atom_core.kv_cache import BlockTable, KVCacheConfig, PagedCache, make_block_hasher
from atom_core.kv_cache.block_table import NO_BLOCK
from atom_core.kv_cache.prefix_cache import PrefixCache
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import blocks_of_request, longest_request
from fake_worker import FakeEngine, pages, tokens_alone

BLOCK_SIZE = 2


def make_cache(windows=(None, 4), *, num_blocks=64, max_step_tokens=4, **overrides):
    config = KVCacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, groups=pages(*windows), **overrides)
    return PagedCache(config, max_step_tokens=max_step_tokens)


def admit(cache, token_ids, *, salt=""):
    table = cache.make_table(salt)
    found = cache.admit(table, token_ids, use_prefix=True, max_tokens=len(token_ids), reserve=0, count=True)
    return table, found


def compute(cache, table, token_ids, *, first=0, chunk=4):
    """Run a prompt chunk by chunk, as a scheduler would: room, trim, publish, report."""
    for step, start in enumerate(range(first, len(token_ids), chunk)):
        end = min(start + chunk, len(token_ids))
        assert cache.grow(table, end, len(token_ids))
        cache.trim(table, end, step)
        cache.publish(table, token_ids, end)
        cache.step_reported(step)


def tokens_of(prefix):
    """The tokens of a prefix's last block."""
    return tuple(np.frombuffer(prefix.covered, "<i8").tolist())


def run_through(cache, token_ids):
    """A request from arrival to end; how many of its tokens were found."""
    table, found = admit(cache, token_ids)
    compute(cache, table, token_ids, first=found)
    cache.release(table)
    return found


def make_engine(windows, *, num_blocks, ahead=0, block_size=1, enable_prefix_caching=False, **overrides):
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 4, "max_model_len": 64, "async_scheduling": ahead > 0}
    cache = KVCacheConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        groups=pages(*windows),
        enable_prefix_caching=enable_prefix_caching,
    )
    return FakeEngine(Scheduler(SchedulerConfig(**limits | overrides), cache), num_blocks, block_size, ahead, windows)


def make_request(request_id, num_prompt_tokens, max_tokens=4, seed=0):
    prompt = [(seed + 5 * i) % 7 for i in range(num_prompt_tokens)]
    return EngineRequest(request_id=request_id, token_ids=prompt, sampling_params=SamplingParams(max_tokens=max_tokens))


def test_blocks_behind_the_window_return_while_the_request_runs():
    cache = make_cache((None, 4))
    tokens = list(range(40))
    table, _ = admit(cache, tokens)
    compute(cache, table, tokens)
    assert table.num_held == 20 + 2
    assert cache.pool.num_free == 64 - 22


def test_they_return_when_the_last_step_scheduled_with_them_is_reported():
    cache = make_cache((4,), enable_prefix_caching=False)
    table, _ = admit(cache, list(range(8)))
    free = cache.pool.num_free
    cache.trim(table, 4, after_step=7)
    cache.trim(table, 8, after_step=8)
    assert (cache.pool.num_free, cache.num_returning) == (free, 2)
    cache.step_reported(7)
    assert cache.pool.num_free == free
    cache.step_reported(8)
    assert (cache.pool.num_free, cache.num_returning) == (free + 2, 0)


def test_a_block_that_the_next_query_still_sees_is_kept():
    cache = make_cache((4,), enable_prefix_caching=False)
    table, _ = admit(cache, list(range(8)))
    cache.trim(table, 4, after_step=0)  # the query at 4 sees 1, 2, 3 and itself
    assert table.first_held == [0]
    cache.trim(table, 5, after_step=0)
    assert table.first_held == [1]


def test_a_window_holds_no_more_of_a_long_prompt_than_it_and_a_step_need():
    cache = make_cache((4,))
    tokens = list(range(100))
    table, _ = admit(cache, tokens)
    most = table.num_held
    for step in range(25):
        assert cache.grow(table, 4 * step + 4, 100)
        most = max(most, table.num_held)
        cache.trim(table, 4 * step + 4, step)
        cache.step_reported(step)
    assert most <= blocks_of_request(pages(4), 100, BLOCK_SIZE, 4) == 5


def test_a_whole_prefix_is_found_that_only_its_last_window_is_left_of():
    cache = make_cache((None, 4))
    tokens = list(range(40))
    assert run_through(cache, tokens) == 0
    assert run_through(cache, tokens) == 38
    assert (cache.num_queries, cache.num_hits) == (80, 38)


def test_found_blocks_of_a_window_are_its_last_ones():
    cache = make_cache((None, 4))
    tokens = list(range(12))
    run_through(cache, tokens)
    table, found = admit(cache, [*tokens, 99])
    assert found == 12
    assert [len(block_ids) for block_ids in table.groups] == [7, 7]
    assert table.first_held == [0, 4]


def test_what_a_finished_request_held_last_serves_its_whole_text():
    """Blocks given up earlier are evicted first: those held to the end must suffice."""
    cache = make_cache((4,), num_blocks=6)
    tokens = list(range(13))
    table, _ = admit(cache, tokens)
    compute(cache, table, tokens)
    for block_id in [*cache.pool._idle_cached]:
        cache.pool._evict(block_id)
    cache.release(table)
    assert run_through(cache, [*tokens, 99]) == 12


def test_a_prefix_is_as_long_as_every_group_can_serve():
    cache = make_cache((None, 4))
    tokens = list(range(20))
    run_through(cache, tokens)
    table, _ = admit(cache, tokens[:9])
    held = {block_id for ids in table.groups for block_id in ids}
    # Evict what the end of the text needs in the window's group.
    prefixes = cache._prefixes
    victim = next(p.block_ids[1] for p in prefixes._by_hash.values() if tokens_of(p) == (16, 17))
    assert victim not in held
    cache.pool._evict(victim)
    cache.release(table)
    found = run_through(cache, [*tokens, 99])
    assert found == 16  # sees 13, 14, 15, whose blocks are there


@pytest.mark.parametrize("windows", [(3,), (None, 3), (3, None, 7), (None, None)])
def test_one_token_at_least_is_computed(windows):
    cache = make_cache(windows)
    run_through(cache, list(range(8)))
    assert admit(cache, list(range(8)))[1] == 6


def test_a_longer_window_decides_over_a_shorter_one():
    cache = make_cache((8, 2))
    tokens = list(range(20))
    run_through(cache, tokens)
    prefixes = {tokens_of(p): p for p in cache._prefixes._by_hash.values()}
    cache.pool._evict(prefixes[12, 13].block_ids[0])
    assert run_through(cache, [*tokens, 99]) == 12
    assert run_through(cache, [*tokens, 99]) == 20


def test_blocks_that_serve_no_hit_without_an_evicted_one_are_vacant_at_once():
    cache = make_cache((None, 4, 4, 2))
    run_through(cache, list(range(8)))
    prefixes = {tokens_of(p): p for p in cache._prefixes._by_hash.values()}
    vacant = cache.pool.num_vacant
    cache.pool._evict(prefixes[4, 5].block_ids[1])
    assert cache.pool.num_vacant == vacant + 2  # of both groups with this window
    assert [block_id is None for block_id in prefixes[4, 5].block_ids] == [False, True, True, False]
    cache.pool._evict(prefixes[6, 7].block_ids[0])
    assert prefixes[6, 7].block_ids == (None,) * 4


def test_prefixes_without_blocks_are_forgotten():
    cache = make_cache((4,), num_blocks=8)
    for text in range(20):
        run_through(cache, list(range(100 * text, 100 * text + 30)))
    known = cache._prefixes._by_hash.values()
    # Prefixes stay known as long as blocks come after them.
    assert len(known) <= 8 * 15
    for block_id in list(cache.pool._idle_cached):
        if block_id in cache.pool._idle_cached:
            cache.pool._evict(block_id)
    assert not cache._prefixes._by_hash
    assert cache.pool.num_vacant == 8


def test_the_longest_request_is_the_last_that_fits():
    for windows in ((None,), (6,), (None, 6), (None, 3, 3, 11)):
        for num_blocks in range(1, 40):
            longest = longest_request(pages(*windows), num_blocks, BLOCK_SIZE, step_tokens=4, limit=50)
            assert longest == 0 or blocks_of_request(pages(*windows), longest, BLOCK_SIZE, 4) <= num_blocks
            assert longest == 50 or blocks_of_request(pages(*windows), longest + 1, BLOCK_SIZE, 4) > num_blocks


def test_windows_let_a_text_run_that_is_longer_than_the_cache():
    engine = make_engine((4,), num_blocks=8)
    request = make_request("long", 40, max_tokens=20)
    engine.add(request)
    engine.run()
    assert engine.tokens["long"] == tokens_alone(request, (4,))
    assert engine.scheduler.stats().num_free_blocks == 8


def test_a_request_that_could_never_fit_is_refused():
    engine = make_engine((None, 4), num_blocks=20)
    assert engine.scheduler.why_it_cannot_fit(make_request("fits", 10, max_tokens=4)) is None
    assert "takes 21 blocks" in str(engine.scheduler.why_it_cannot_fit(make_request("not", 11, max_tokens=4)))


def test_a_prompt_takes_blocks_from_later_decodes_of_the_same_step():
    engine = make_engine((4,), num_blocks=9)
    first = make_request("a", 30)
    later = [make_request(name, 1, max_tokens=8, seed=i) for i, name in enumerate("bc")]
    engine.add(first)
    engine.step()
    engine.add(*later)
    while not engine.scheduler.stats().num_preemptions:
        engine.step()
    assert "a" in [entry.request_id for entry in engine.steps[-1].scheduled]
    assert {entry.request_id for entry in engine.steps[-1].scheduled} != {"a", "b", "c"}
    engine.run()
    for request in (first, *later):
        assert engine.tokens[request.request_id] == tokens_alone(request, (4,))


def test_a_prompt_that_lacks_blocks_waits_with_those_it_has():
    engine = make_engine((None, 4), num_blocks=34)
    decode, prompt = make_request("decode", 1, max_tokens=6), make_request("prompt", 20, max_tokens=1)
    engine.add(decode)
    engine.step()
    engine.add(prompt)
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0
    assert any(len(step.scheduled) == 1 and not step.scheduled[0].num_samples for step in engine.steps)
    for request in (decode, prompt):
        assert engine.tokens[request.request_id] == tokens_alone(request, (None, 4))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_long_prompts_in_little_memory_get_their_tokens(data):
    windows = data.draw(st.sampled_from([(4,), (3, 6), (None, 3), (2, None, 5)]))
    block_size, step_tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 7))
    least = blocks_of_request(pages(*windows), 60, block_size, step_tokens)
    engine = make_engine(
        windows,
        num_blocks=least + data.draw(st.integers(0, least)),
        ahead=data.draw(st.integers(0, 2)),
        block_size=block_size,
        enable_prefix_caching=data.draw(st.booleans()),
        max_num_batched_tokens=step_tokens,
    )
    crowd = [
        make_request(str(i), data.draw(st.integers(1, 40)), max_tokens=data.draw(st.integers(1, 20)), seed=i % 3)
        for i in range(data.draw(st.integers(2, 6)))
    ]
    for request in crowd:
        engine.add(request)
        for _ in range(data.draw(st.integers(0, 4))):
            if engine.scheduler.has_unfinished():
                engine.step()
    engine.run()
    for request in crowd:
        assert engine.tokens[request.request_id] == tokens_alone(request, windows)
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks


def prefixes_of_two_groups(vacated=None):
    """A prefix cache; blocks that lose their name join `vacated`."""
    vacated = [] if vacated is None else vacated
    return PrefixCache(
        BLOCK_SIZE,
        make_block_hasher("xxhash64"),
        lambda block_id, is_cached: None if is_cached else vacated.append(block_id),
        pages(None, 4),
    )


def table_of(groups, num_followed_tokens):
    table = BlockTable("", len(groups))
    table.groups, table.num_followed_tokens = groups, num_followed_tokens
    return table


def test_blocks_that_a_followed_request_never_had_are_not_taken_from_a_prefix():
    vacated: list[int] = []
    prefixes = prefixes_of_two_groups(vacated)
    tokens = list(range(6))
    prefixes.publish(table_of([[0, 1, 2], [3, 4, 5]], 0), tokens, 3)
    # It was loaded behind a window: of the second group it has the last block alone.
    followed = table_of([[6, 7, 8], [NO_BLOCK, NO_BLOCK, 9]], len(tokens))
    prefixes.publish(followed, tokens, 3, first_held=[0, 2])
    assert vacated == [2, 5]
    assert [prefixes.key_of(block_id).is_followed for block_id in (0, 1, 3, 4, 8, 9)] == [False] * 4 + [True] * 2


def test_a_prefix_is_followed_where_all_its_blocks_are():
    prefixes, tokens = prefixes_of_two_groups(), list(range(6))
    followed = table_of([[0, 1, 2], [NO_BLOCK, NO_BLOCK, 3]], len(tokens))
    prefixes.publish(followed, tokens, 3, first_held=[0, 2])
    assert [prefixes.key_of(block_id).is_followed for block_id in (0, 1, 2, 3)] == [False, False, True, True]
    # A window of the followed prefix goes, and one comes that a model that drafts never saw.
    prefixes.forget(3)
    prefixes.publish(table_of([[4, 5, 6], [7, 8, 9]], 0), tokens, 3)
    assert [prefixes.key_of(block_id).is_followed for block_id in (2, 9)] == [False, False]
