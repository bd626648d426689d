"""States behind cached prefixes: what is computed once is found, nothing is lost, and nobody finds another's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.kv_cache import KVCacheConfig, snapshot_places
from atom_core.messages import EngineRequest
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import Pages, Slots
from block_accounting import check_blocks
from fake_drafters import speculation_of
from fake_states import let_keep_states
from fake_worker import FakeEngine, tokens_alone

MakeEngine = Callable[..., LLMEngine]
BLOCK_SIZE = 16


def make_fake(
    *,
    num_blocks: int = 512,
    num_slots: int = 4,
    num_snapshots: int = 64,
    ahead: int = 0,
    num_drafts: int = 0,
    **limits: Any,
) -> FakeEngine:
    """`num_slots` counts requests; each has a slot for each of `num_drafts`, which are right more often than not."""
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 4096, "async_scheduling": ahead > 0}
    cache = KVCacheConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        groups=(Pages(), Slots(1 + num_drafts)),
        num_slots=num_slots * (1 + num_drafts),
        num_snapshots=num_snapshots,
    )
    speculation = speculation_of("knowing" if num_drafts else "none", num_drafts)
    scheduler = Scheduler(SchedulerConfig(**config | limits), cache, speculation=speculation)
    return let_keep_states(FakeEngine(scheduler, num_blocks, BLOCK_SIZE, ahead), 1 + num_drafts)


def make_request(name: str, token_ids: list[int], *, salt: str = "", max_tokens: int = 2) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id=name, token_ids=token_ids, sampling_params=params, cache_salt=salt)


def draw_tokens(seed: int, num_tokens: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(13) for _ in range(num_tokens)]


def found_by(engine: FakeEngine, request: EngineRequest) -> int:
    """Tokens that `request` finds; its tokens are right."""
    engine.add(request)
    engine.run()
    assert engine.tokens[request.request_id] == tokens_alone(request)
    return engine.outputs[request.request_id][-1].num_cached_tokens


def check_nothing_is_lost(engine: FakeEngine) -> None:
    """All requests have ended: slots, snapshots and blocks are back."""
    cache = engine.scheduler._cache
    check_blocks(engine.scheduler)
    assert cache.pool.num_free == cache.config.num_blocks
    assert cache.states.slots.num_free == cache.config.num_slots // cache.config.slots_each
    assert cache.states.snapshots.num_free == cache.config.num_snapshots


def test_a_second_request_computes_less_than_a_tenth_of_2000_shared_tokens():
    engine = make_fake()
    shared = draw_tokens(1, 2000)
    assert found_by(engine, make_request("a", shared + draw_tokens(2, 300))) == 0
    assert found_by(engine, make_request("b", shared + draw_tokens(3, 300))) == 1920
    check_nothing_is_lost(engine)


@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_at_most_191_tokens_or_a_tenth_of_a_shared_prefix_are_lost(block_size: int):
    places = snapshot_places(40_000, 64)
    assert all(place % block_size == 0 for place in places)
    for before, after in zip([0, *places], places, strict=False):
        assert after - before <= 192 or before >= 0.9 * (after - 1)
    assert (len([p for p in places if p <= 2000]), len([p for p in places if p <= 32_000])) == (10, 38)


def test_a_prompt_that_comes_again_is_found_up_to_the_last_multiple_of_64():
    engine = make_fake()
    prompt = draw_tokens(1, 400)
    assert found_by(engine, make_request("a", prompt)) == 0
    assert found_by(engine, make_request("b", prompt)) == 384
    assert found_by(engine, make_request("c", prompt[:384])) == 192


def test_no_state_is_kept_of_what_is_decoded():
    engine = make_fake()
    prompt = draw_tokens(1, 60)
    assert found_by(engine, make_request("a", prompt, max_tokens=200)) == 0
    assert found_by(engine, make_request("b", prompt + engine.tokens["a"])) == 0


def test_the_snapshot_unused_for_longest_makes_room():
    engine = make_fake(num_snapshots=2)
    for name, seed in [("a", 1), ("b", 2)]:
        assert found_by(engine, make_request(name, draw_tokens(seed, 100))) == 0
    assert found_by(engine, make_request("a again", draw_tokens(1, 100))) == 64
    assert found_by(engine, make_request("c", draw_tokens(3, 100))) == 0
    assert found_by(engine, make_request("a once more", draw_tokens(1, 100))) == 64
    assert found_by(engine, make_request("b again", draw_tokens(2, 100))) == 0
    check_nothing_is_lost(engine)


def test_salts_keep_states_of_tenants_apart():
    engine = make_fake()
    prompt = draw_tokens(1, 200)
    assert found_by(engine, make_request("a", prompt, salt="one")) == 0
    assert found_by(engine, make_request("b", prompt, salt="two")) == 0
    assert found_by(engine, make_request("c", prompt, salt="one")) == 192


@pytest.mark.parametrize(("ahead", "num_drafts"), [(0, 0), (2, 0), (0, 3), (2, 2)])
def test_200_requests_with_preemptions_and_aborts_lose_no_slot_no_snapshot_and_no_block(ahead: int, num_drafts: int):
    limits: dict[str, Any] = {"max_model_len": 600, "max_num_seqs": 6}
    engine = make_fake(num_blocks=40, num_slots=5, num_snapshots=7, ahead=ahead, num_drafts=num_drafts, **limits)
    draw = random.Random(ahead)
    beginnings = [draw_tokens(seed, 300) for seed in range(4)]
    requests = []
    for number in range(200):
        begin = draw.choice(beginnings)[: draw.randrange(1, 301)]
        token_ids = begin + draw_tokens(1000 + number, draw.randrange(1, 100))
        salt = draw.choice(["", "", "s"])
        requests.append(make_request(f"r{number}", token_ids, salt=salt, max_tokens=draw.randrange(1, 60)))
    for request in requests:
        engine.add(request)
        for _ in range(draw.randrange(8)):
            if engine.scheduler.has_unfinished():
                engine.step()
        if draw.random() < 0.2:
            engine.abort(draw.choice(requests).request_id)
    engine.run()
    for request in requests:
        got, expected = engine.tokens[request.request_id], tokens_alone(request)
        is_aborted = engine.ends[request.request_id].finish_reason == "abort"
        assert got == (expected[: len(got)] if is_aborted else expected)
    stats = engine.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert (0 < stats.num_accepted_tokens < stats.num_draft_tokens) == (num_drafts > 0)
    check_nothing_is_lost(engine)


def test_a_cache_that_finds_prefixes_of_states_without_snapshots_is_refused():
    with pytest.raises(ValueError, match="num_snapshots is 0"):
        make_fake(num_snapshots=0)


def test_a_warm_model_gives_every_bit_of_a_cold_one(tiny_family: Callable[[str], Path], make_engine: MakeEngine):
    draw = random.Random(5)
    shared = [draw.randrange(3, 384) for _ in range(400)]
    prompts = [shared + [draw.randrange(3, 384) for _ in range(20)] for _ in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
    folder = tiny_family("qwen3_next")
    cold = make_engine(folder, enable_prefix_caching=False)
    warm = make_engine(folder, enable_prefix_caching=True)
    for number, prompt in enumerate(prompts):
        expected, got = (engine.generate([prompt], params, use_tqdm=False)[0] for engine in (cold, warm))
        assert got["num_cached_tokens"] == (384 if number else 0)
        assert (got["token_ids"], got["logprobs"]) == (expected["token_ids"], expected["logprobs"])
    assert warm.stats.num_free_blocks == warm.stats.num_blocks


def test_a_place_that_a_prompt_just_reaches_is_one():
    assert snapshot_places(191, 64) == []
    assert snapshot_places(192, 64) == [192]
    assert snapshot_places(2000, 64) == [192 * number for number in range(1, 11)]
    assert len(snapshot_places(32_000, 64)) == 38
    assert snapshot_places(700, 300) == [300, 600]
