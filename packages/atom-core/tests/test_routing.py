"""Which of several engines gets a prompt: by what it would have to compute, and by what waits there."""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle

import msgspec
import pytest

from atom_core.engine.replicas.known_blocks import KnownBlocks
from atom_core.engine.replicas.open_samples import OpenSamples
from atom_core.engine.replicas.router import Route, Router
from atom_core.engine.replicas.status import total_stats
from atom_core.kv_cache import BlockTable, KVCacheConfig, PagedCache
from atom_core.messages import (
    EngineOutput,
    KVTransferStats,
    OffloadStats,
    Prompt,
    SamplingParams,
    StepStats,
    Submission,
)
from atom_core.messages.requests import RequestKind

BLOCK = 4
IDLE: dict[int, int] = {}


def make_router(num_engines=2, num_blocks=64, **settings):
    router = Router(BLOCK, "xxhash64", **settings)
    for rank in range(num_engines):
        router.join(rank, num_blocks)
    return router


def prompt_of(first, num_tokens=41):
    return [first] * num_tokens


def test_a_prompt_follows_its_prefix():
    router = make_router()
    homes = {first: router.route(prompt_of(first), IDLE).rank for first in range(8)}
    assert Counter(homes.values()) == {0: 4, 1: 4}
    for first in random.Random(0).sample(range(8), 8):
        assert router.route([*prompt_of(first), 99, 98], IDLE) == Route(homes[first], 41 + 2 - 40)


def test_a_prefix_counts_for_as_long_as_it_saves_more_than_there_is_to_do_beyond_the_others():
    router = make_router()
    home = router.route(prompt_of(1), IDLE).rank
    assert router.route(prompt_of(1), {home: 40, 1 - home: 1}).rank == home
    assert router.route(prompt_of(1), {home: 42, 1 - home: 1}).rank == 1 - home


def test_a_prompt_that_two_engines_have_goes_to_the_one_with_less_to_do():
    router = make_router()
    for loads in ({0: 0, 1: 999}, {0: 999, 1: 0}):
        router.route(prompt_of(1), loads)
    assert [router.route(prompt_of(1), {0: load, 1: 5}).rank for load in (4, 6)] == [0, 1]


def test_prompts_without_a_common_beginning_are_dealt_evenly():
    router = make_router(num_engines=3)
    ranks = [router.route([first], IDLE).rank for first in range(9)]
    assert Counter(ranks) == {0: 3, 1: 3, 2: 3}


def test_prompts_of_other_salts_share_nothing():
    router = make_router()
    homes = [router.route(prompt_of(1), IDLE, salt=salt) for salt in ("", "a", "b", "")]
    assert [route.num_to_compute for route in homes] == [41, 41, 41, 1]


def test_the_last_token_of_a_prompt_is_always_computed():
    router = make_router()
    assert [router.route(prompt_of(1, 8), IDLE).num_to_compute for _ in range(2)] == [8, 4]


def test_of_many_prompts_fewer_blocks_of_each_are_compared():
    router = make_router()
    router.route(prompt_of(1), IDLE)
    assert router.route(prompt_of(1), IDLE, most_blocks=3).num_to_compute == 41 - 3 * BLOCK
    assert router.route(prompt_of(1), IDLE, most_blocks=0).num_to_compute == 41


def test_of_one_long_prompt_1024_blocks_are_compared():
    router = make_router(num_blocks=4096)
    assert [router.route(prompt_of(1, 5000), IDLE).num_to_compute for _ in range(2)] == [5000, 5000 - 1024 * BLOCK]


def test_counts_of_several_engines_are_summed_field_by_field():
    others = ("num_accepted_tokens_per_pos", "num_steps_by_size", "offload", "kv_transfer")
    names = [name for name in StepStats.__struct_fields__ if name not in others]

    def stats_of(first: int, accepted: tuple[int, ...]) -> StepStats:
        numbers = {name: first * (place + 1) for place, name in enumerate(names)}
        return StepStats(**numbers, num_accepted_tokens_per_pos=accepted, num_steps_by_size=(first, 0, 2 * first))

    one, other = stats_of(1, (5, 3, 1)), stats_of(10, (4,))
    assert total_stats([one]) is one
    assert total_stats([one, other]) == stats_of(11, (9, 3, 1))
    keeping = msgspec.structs.replace(one, offload=OffloadStats(*range(9)))
    assert total_stats([keeping, other]).offload == keeping.offload
    assert total_stats([keeping, keeping]).offload == OffloadStats(*range(0, 18, 2))
    sending = msgspec.structs.replace(one, kv_transfer=KVTransferStats(*range(7)))
    assert total_stats([sending, sending, other]).kv_transfer == KVTransferStats(*range(0, 14, 2))


def test_where_caches_find_no_prefixes_only_the_load_counts():
    router = make_router(finds_prefixes=False)
    assert [router.route(prompt_of(1), IDLE) for _ in range(4)] == [Route(0, 41), Route(1, 41)] * 2


def test_an_engine_that_left_gets_nothing_and_comes_back_with_an_empty_cache():
    router = make_router()
    home = router.route(prompt_of(1), IDLE).rank
    router.leave(home)
    assert router.route(prompt_of(1), IDLE) == Route(1 - home, 41)
    router.join(home, 64)
    assert router.route(prompt_of(1), IDLE) == Route(1 - home, 1)


def test_an_engine_that_comes_back_is_not_flooded():
    router = make_router()
    router.leave(1)
    for first in range(8):
        router.route([first], IDLE)
    router.join(1, 64)
    ranks = [router.route([first], IDLE).rank for first in range(8, 16)]
    assert Counter(ranks) == {0: 4, 1: 4}


def test_without_any_engine_there_is_no_route():
    with pytest.raises(LookupError):
        Router(BLOCK, "xxhash64").route([1], IDLE)


def test_engines_that_forget_their_prefixes_are_known_to():
    router = make_router()
    router.route(prompt_of(1), IDLE)
    router.forget_prefixes()
    assert router.route(prompt_of(1), IDLE).num_to_compute == 41


def test_what_was_used_longest_ago_is_forgotten_from_its_end():
    known = KnownBlocks(4)
    old, new = [b"a", b"b", b"c"], [b"x", b"y"]
    known.add(old)
    known.add(new)
    assert (known.num_leading(old), known.num_leading(new), len(known)) == (2, 2, 4)
    known.add(old[:1])
    known.add([b"z", b"v"])
    assert [known.num_leading(names) for names in (old, new, [b"z", b"v"])] == [1, 1, 2]


def test_of_a_prompt_larger_than_the_cache_its_first_blocks_are_known():
    known = KnownBlocks(2)
    known.add([b"a", b"b", b"c"])
    assert known.num_leading([b"a", b"b", b"c"]) == 2


class CountingCaches:
    """The caches of two engines, too small for all prefixes; counts the tokens that they find."""

    def __init__(self, num_blocks):
        config = KVCacheConfig(num_blocks=num_blocks, block_size=BLOCK)
        self.caches = [PagedCache(config, max_step_tokens=64) for _ in range(2)]
        self.num_found = 0

    def serve(self, rank, token_ids):
        cache, table = self.caches[rank], BlockTable("")
        self.num_found += cache.admit(
            table, token_ids, use_prefix=True, max_tokens=len(token_ids), reserve=0, count=True
        )
        cache.publish(table, token_ids, len(token_ids))
        cache.release(table)


def requests_of_shared_prefixes():
    """40 prompts that begin in one of 8 ways, in a random order."""
    order = [first for first in range(8) for _ in range(5)]
    random.Random(0).shuffle(order)
    return [[*prompt_of(first, 40), 100 + index, 7] for index, first in enumerate(order)]


@pytest.mark.parametrize("num_blocks", [60, 1000])
def test_by_prefix_twice_as_many_tokens_are_found_as_in_turn(num_blocks):
    # 60 blocks hold 5 of the prefixes, and 1000 all of them: then each is computed once, or once for each engine.
    router, turns = make_router(num_blocks=num_blocks), cycle((0, 1))
    by_prefix, in_turn = CountingCaches(num_blocks), CountingCaches(num_blocks)
    for token_ids in requests_of_shared_prefixes()[: None if num_blocks == 60 else 20]:
        by_prefix.serve(router.route(token_ids, IDLE).rank, token_ids)
        in_turn.serve(next(turns), token_ids)
    assert by_prefix.num_found > 1.5 * in_turn.num_found > 0


def submission_of(n=1, max_tokens=10, num_prompts=1, kind: RequestKind = "generate"):
    prompts = [Prompt(str(index), [1] * 20, seed=0, max_tokens=max_tokens) for index in range(num_prompts)]
    return Submission(prompts, SamplingParams(n=n), kind=kind)


def test_a_prompt_waits_until_its_first_output_and_a_sample_until_its_end():
    samples = OpenSamples(2)
    samples.add(submission_of(n=2), [Route(1, 16)])
    assert samples.loads == {0: 0, 1: 16 + 2 * 2 * 10}
    samples.take([EngineOutput("0/1", [5])])
    assert samples.loads[1] == 2 * 2 * 10
    samples.take([EngineOutput("0/0", [5], finish_reason="stop")])
    assert samples.loads[1] == 2 * 10
    samples.take([EngineOutput("0/1", [], finish_reason="abort")])
    assert samples.loads == {0: 0, 1: 0}
    assert len(samples) == 0


def test_a_sample_without_a_limit_counts_as_one_of_middling_length():
    samples = OpenSamples(1)
    samples.add(submission_of(max_tokens=100_000), [Route(0, 20)])
    assert samples.loads[0] == 20 + 2 * 256


def test_an_embedding_counts_as_its_prompt_alone():
    samples = OpenSamples(1)
    samples.add(submission_of(kind="embed", max_tokens=0), [Route(0, 20)])
    assert samples.loads[0] == 20
    samples.take([EngineOutput("0", [], finish_reason="stop")])
    assert samples.loads[0] == 0


def test_samples_are_found_by_their_engine_until_they_end():
    samples = OpenSamples(2)
    samples.add(submission_of(num_prompts=3), [Route(0, 1), Route(1, 1), Route(0, 1)])
    assert samples.by_engine(["0", "1", "2", "never heard of"]) == {0: ["0", "2"], 1: ["1"]}
    samples.take([EngineOutput("0", [], finish_reason="stop")])
    assert samples.by_engine(["0", "1", "2"]) == {1: ["1"], 0: ["2"]}


def test_an_engine_that_is_gone_loses_its_samples_and_its_load():
    samples = OpenSamples(2)
    samples.add(submission_of(num_prompts=2, n=2), [Route(0, 20), Route(1, 20)])
    assert samples.lose(1) == ["1/0", "1/1"]
    assert samples.loads[1] == 0
    assert samples.by_engine(["0/0", "1/0"]) == {0: ["0/0"]}
