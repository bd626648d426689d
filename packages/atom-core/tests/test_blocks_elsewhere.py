"""Blocks that left the cache come back by their names, whatever happens meanwhile, and no token changes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from atom_core.kv_cache import KVCacheConfig
from atom_core.kv_cache.elsewhere.offload import OffloadedBlocks
from atom_core.kv_cache.elsewhere.protocol import BlockKey
from atom_core.messages import BlockTransfers, EngineRequest, OffloadStats, SamplingParams, TransferResult
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import Slots, blocks_of_request
from block_accounting import check_blocks
from fake_elsewhere import FakeElsewhere, let_offload
from fake_worker import FakeEngine, pages, tokens_alone

BLOCK_SIZE = 4
Offloading = tuple[FakeEngine, FakeElsewhere]


def make_engine(
    *,
    num_blocks: int = 8,
    in_memory: int = 32,
    on_disk: int = 0,
    ahead: int = 0,
    num_steps: int = 1,
    windows: tuple[int | None, ...] = (None,),
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 64,
) -> Offloading:
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=32,
            async_scheduling=ahead > 0,
        ),
        KVCacheConfig(num_blocks=num_blocks, block_size=block_size, groups=pages(*windows), prefix_hash="sha256"),
        elsewhere=OffloadedBlocks(in_memory, on_disk),
    )
    engine = FakeEngine(scheduler, num_blocks, block_size, ahead, windows)
    return engine, let_offload(engine, num_steps)


def make_request(name: str, token_ids: list[int], *, salt: str = "", max_tokens: int = 2) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens)
    return EngineRequest(request_id=name, token_ids=token_ids, sampling_params=params, cache_salt=salt)


def found_by(engine: FakeEngine, request: EngineRequest) -> int:
    """Tokens that `request` finds; those that it gets are right."""
    engine.add(request)
    engine.run()
    assert engine.tokens[request.request_id] == tokens_alone(request, engine.worker.windows)
    return engine.outputs[request.request_id][-1].num_cached_tokens


def fill_with_others(engine: FakeEngine, name: str = "others") -> None:
    """A long request that takes every block."""
    assert found_by(engine, make_request(name, [len(name), *([7] * 28)], max_tokens=3)) == 0


def offload_of(engine: FakeEngine) -> OffloadStats:
    stats = engine.scheduler.stats().offload
    assert stats is not None
    return stats


def phases(engine: FakeEngine) -> dict[str, str]:
    return {state.caller_id: state.phase for state in engine.scheduler.states()}


FIRST = [*range(13), 1, 2, 3]


def test_a_second_turn_finds_blocks_that_left_the_cache():
    engine, _ = make_engine()
    assert found_by(engine, make_request("first turn", FIRST)) == 0
    fill_with_others(engine)
    assert found_by(engine, make_request("second turn", [*FIRST, 5, 6, 7])) == 16
    assert offload_of(engine).num_loaded_from_memory == 4
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (16 + 29 + 19, 16)


def test_without_places_elsewhere_they_are_computed_again():
    engine, _ = make_engine(in_memory=0)
    assert found_by(engine, make_request("first turn", FIRST)) == 0
    fill_with_others(engine)
    assert found_by(engine, make_request("second turn", [*FIRST, 5, 6, 7])) == 0


def test_a_block_that_nobody_keeps_takes_those_with_it_that_nobody_finds_without_it():
    engine, _ = make_engine(in_memory=0, num_blocks=16, windows=(None, None))
    found_by(engine, make_request("first", FIRST))
    found_by(engine, make_request("others", [7] * 18, max_tokens=1))
    prefixes = engine.scheduler._cache._prefixes
    assert prefixes is not None
    assert all(None not in prefix.block_ids for prefix in prefixes._by_hash.values())


def test_what_was_loaded_is_found_in_the_cache_by_the_next():
    engine, elsewhere = make_engine()
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    found_by(engine, make_request("second", [*FIRST, 5]))
    elsewhere.places.clear()
    assert found_by(engine, make_request("third", [*FIRST, 6])) == 16


def test_others_decode_while_a_request_waits_for_its_blocks():
    engine, _ = make_engine(num_steps=5, num_blocks=14)
    found_by(engine, make_request("first", FIRST))
    engine.add(make_request("decodes", [3] * 20, max_tokens=12))
    while phases(engine).get("decodes") != "decoding":
        engine.step()
    engine.add(make_request("fills", [4] * 29, max_tokens=1))
    while "fills" not in engine.ends:
        engine.step()
    engine.add(make_request("second", [*FIRST, 5]))
    before = len(engine.tokens["decodes"])
    engine.step()
    assert phases(engine)["second"] == "waiting for kv"
    assert engine.scheduler.stats().num_waiting_for_kv == 1
    engine.step()
    engine.step()
    assert phases(engine)["second"] == "waiting for kv"
    assert len(engine.tokens["decodes"]) == before + 3
    engine.run()
    assert engine.tokens["second"] == tokens_alone(make_request("second", [*FIRST, 5]))


def test_steps_without_rows_wait_for_blocks_where_nobody_else_runs():
    engine, _ = make_engine(num_steps=3)
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    num_before = len(engine.steps)
    found_by(engine, make_request("second", [*FIRST, 5]))
    rows = [len(step.scheduled) for step in engine.steps[num_before:]]
    assert rows == [0, 0, 0, 0, 1, 1]


def test_a_damaged_block_is_computed_again_and_forgotten():
    engine, elsewhere = make_engine()
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    elsewhere.damaged = {sorted(elsewhere.places)[2]}
    cached = found_by(engine, make_request("second", [*FIRST, 5]))
    assert cached < 16
    assert offload_of(engine).num_failed == 1
    elsewhere.damaged = set()
    fill_with_others(engine, "again")
    assert found_by(engine, make_request("third", [*FIRST, 6])) == 16


def test_what_is_being_loaded_makes_no_room_for_what_its_blocks_evict():
    engine, elsewhere = make_engine(in_memory=4)
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    assert len(elsewhere.places) == 4
    assert found_by(engine, make_request("second", [*FIRST, 5])) == 16
    assert offload_of(engine).num_not_saved > 0


def test_what_is_on_the_disk_makes_room_in_memory_while_it_is_loaded():
    engine, _ = make_engine(in_memory=8, on_disk=64)
    found = []
    for turn in range(4):
        for first in (20, 21):
            found.append(found_by(engine, make_request(f"{first}, turn {turn}", [first] * (22 + turn), max_tokens=1)))
    assert found == [0, 0, *[20] * 4, 24, 24]
    assert offload_of(engine).num_not_saved == 0


def keys_of(prompt: str, num_blocks: int = 4) -> list[BlockKey]:
    return [BlockKey(f"{prompt} {index}".encode(), 0) for index in range(num_blocks)]


def leave_the_cache(blocks: OffloadedBlocks, prompt: str) -> BlockTransfers:
    """All blocks of a prompt are evicted by one step, its last block first."""
    for block_id, key in reversed(list(enumerate(keys_of(prompt)))):
        blocks.save(key, block_id)
    transfers = blocks.take_transfers()
    assert transfers is not None
    return transfers


def kept_of(blocks: OffloadedBlocks, prompt: str) -> list[bool]:
    return [key in blocks for key in keys_of(prompt)]


def test_while_the_disk_is_held_back_prompts_lose_their_ends_and_never_their_beginnings():
    blocks = OffloadedBlocks(6, 64)
    (write,) = leave_the_cache(blocks, "first").begun
    assert kept_of(blocks, "first") == [True] * 4
    leave_the_cache(blocks, "second")
    assert kept_of(blocks, "first") == [True, True, True, False]
    assert kept_of(blocks, "second") == [True, True, True, False]
    stats = blocks.stats()
    assert (stats.num_in_memory, stats.num_saved, stats.num_not_saved) == (6, 7, 2)
    # As soon as the disk has the beginning of the first one, memory has room for others.
    blocks.take_results([TransferResult(write.transfer_id, 3)])
    leave_the_cache(blocks, "third")
    assert kept_of(blocks, "first") == [True, True, True, False]
    assert kept_of(blocks, "second") == [True, True, False, False]
    assert kept_of(blocks, "third") == [True] * 4
    assert blocks.stats().num_on_disk == 3 + 3


def test_a_block_on_its_way_to_the_disk_is_loaded_from_memory():
    blocks = OffloadedBlocks(6, 64)
    (write,) = leave_the_cache(blocks, "first").begun
    load_id = blocks.hold(keys_of("first"))
    leave_the_cache(blocks, "second")
    blocks.load(load_id, [10, 11, 12, 13])
    transfers = blocks.take_transfers()
    assert transfers is not None
    (load,) = transfers.begun
    assert [copy.source for copy in load.copies] == [*(copy.source for copy in write.copies), 0]
    assert max(copy.source for copy in load.copies) < 6
    assert kept_of(blocks, "second") == [True, True, False, False]


def test_what_the_disk_has_is_forgotten_by_memory_before_what_it_has_not():
    blocks = OffloadedBlocks(6, 64)
    write_all(blocks, leave_the_cache(blocks, "first"))
    save_each(blocks, "abcd")
    assert kept_of(blocks, "first") == [True] * 4


def write_all(blocks: OffloadedBlocks, transfers: BlockTransfers | None) -> None:
    """What was begun is on the disk, and nothing more is begun."""
    for write in () if transfers is None else transfers.begun:
        blocks.take_results([TransferResult(write.transfer_id, len(write.copies))])


def save_each(blocks: OffloadedBlocks, names: str) -> None:
    for block_id, key in enumerate(named(names)):
        assert blocks.save(key, block_id)


def named(names: str) -> list[BlockKey]:
    return [BlockKey(name.encode(), 0) for name in names]


def test_without_a_disk_too_a_prompt_that_is_too_long_loses_its_end():
    blocks = OffloadedBlocks(3)
    leave_the_cache(blocks, "first")
    assert kept_of(blocks, "first") == [True, True, True, False]
    assert (blocks.stats().num_saved, blocks.stats().num_not_saved) == (3, 1)


def test_what_left_the_cache_once_more_is_forgotten_by_memory_since_the_disk_has_it():
    blocks = OffloadedBlocks(3, 64)
    save_each(blocks, "a")
    write_all(blocks, blocks.take_transfers())
    save_each(blocks, "bcdae")
    assert [key in blocks for key in named("abcde")] == [True, False, True, True, True]


def test_what_the_disk_has_forgotten_is_not_forgotten_by_memory_before_what_it_has():
    blocks = OffloadedBlocks(8, 9)
    for prompt in ("first", "second"):
        write_all(blocks, leave_the_cache(blocks, prompt))
    for key in keys_of("first"):
        blocks.save(key, 0)
    write_all(blocks, leave_the_cache(blocks, "third"))
    save_each(blocks, "abcd")
    assert kept_of(blocks, "first") == kept_of(blocks, "third") == [True] * 4


def test_a_place_of_forgotten_contents_is_like_any_other():
    blocks = OffloadedBlocks(2, 64)
    save_each(blocks, "a")
    write_all(blocks, blocks.take_transfers())
    save_each(blocks, "b")
    blocks.forget()
    save_each(blocks, "cde")
    assert [key in blocks for key in named("abcde")] == [False, False, False, True, True]


def test_memory_forgets_the_ends_of_what_was_written_first():
    blocks = OffloadedBlocks(8, 64)
    write_all(blocks, leave_the_cache(blocks, "first"))
    save_each(blocks, "abcdef")
    load_id = blocks.hold(keys_of("first"))
    blocks.load(load_id, [10, 11, 12, 13])
    transfers = blocks.take_transfers()
    assert transfers is not None
    load = next(transfer for transfer in transfers.begun if transfer.kind == "load")
    assert [copy.source < 8 for copy in load.copies] == [True, True, False, False]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_disk_forgets_the_ends_of_prompts_first(kept: int):
    blocks = OffloadedBlocks(8, 9)
    for prompt in ("first", "second"):
        write_all(blocks, leave_the_cache(blocks, prompt))
    if kept:
        load_id = blocks.hold(keys_of("first"))
        blocks.load(load_id, [10, 11, 12, 13])
        blocks.take_transfers()
        blocks.take_results([TransferResult(load_id, 4)])
    leave_the_cache(blocks, "third")
    assert kept_of(blocks, "second" if kept else "first") == [True, False, False, False]
    assert kept_of(blocks, "first" if kept else "second") == [True] * 4


def test_salts_keep_what_is_elsewhere_apart():
    engine, _ = make_engine()
    found_by(engine, make_request("first", FIRST, salt="one"))
    fill_with_others(engine)
    assert found_by(engine, make_request("second", FIRST, salt="two")) == 0
    assert found_by(engine, make_request("third", FIRST, salt="one")) == 12


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_abort_during_a_load_gives_blocks_back_only_when_it_has_ended(ahead: int):
    engine, _ = make_engine(num_steps=4, ahead=ahead)
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    engine.add(make_request("second", [*FIRST, 5]))
    engine.step()
    engine.abort("second")
    assert engine.scheduler.stats().num_waiting_for_kv == 0
    check_blocks(engine.scheduler)
    assert engine.scheduler.stats().num_free_blocks == 8 - 5
    # Everything is needed for it, so it runs when the load has ended.
    found_by(engine, make_request("third", [9] * 29, max_tokens=3))
    assert engine.scheduler.stats().num_free_blocks == 8


def test_a_reset_during_a_load_lets_nobody_find_what_it_brings():
    engine, _ = make_engine(num_steps=3)
    found_by(engine, make_request("first", FIRST))
    fill_with_others(engine)
    engine.add(make_request("second", [*FIRST, 5]))
    engine.step()
    engine.scheduler.forget_prefixes()
    assert offload_of(engine).num_in_memory == 0
    engine.run()
    assert engine.outputs["second"][-1].num_cached_tokens == 0
    assert engine.tokens["second"] == tokens_alone(make_request("second", [*FIRST, 5]))


def test_what_is_on_the_disk_comes_back_when_memory_has_forgotten_it():
    engine, _ = make_engine(in_memory=4, on_disk=64)
    found_by(engine, make_request("first", FIRST))
    for name in ("a", "bb", "ccc"):
        fill_with_others(engine, name)
    assert found_by(engine, make_request("second", [*FIRST, 5])) > 0
    assert offload_of(engine).num_loaded_from_disk > 0


def test_no_more_is_kept_than_there_are_places():
    engine, elsewhere = make_engine(in_memory=3, on_disk=5)
    for number in range(12):
        found_by(engine, make_request(str(number), [number] * 25, max_tokens=1))
    stats = offload_of(engine)
    assert (stats.num_in_memory, stats.num_on_disk) == (3, 5)
    assert max(elsewhere.places) <= 7


def test_states_in_slots_are_refused():
    cache = KVCacheConfig(num_blocks=8, block_size=4, groups=(*pages(None), Slots()), num_slots=1, num_snapshots=1)
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=32)
    with pytest.raises(ValueError, match="no group keeps states"):
        Scheduler(config, cache, elsewhere=OffloadedBlocks(4))


@st.composite
def engines(draw: st.DrawFn) -> Offloading:
    windows = draw(st.sampled_from([(None,), (None,), (None, 5), (3,), (7, 2), (None, 1)]))
    block_size, budget = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    least = blocks_of_request(pages(*windows), 31, block_size, budget)
    return make_engine(
        num_blocks=least + draw(st.integers(0, 8)),
        in_memory=draw(st.integers(0, 40)),
        on_disk=draw(st.sampled_from([0, 0, 3, 50])),
        ahead=draw(st.integers(0, 2)),
        num_steps=draw(st.integers(1, 4)),
        windows=windows,
        block_size=block_size,
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=budget,
    )


events = st.sampled_from(["step", "step", "step", "abort", "reset", "damage"])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=engines(), data=st.data())
def test_whatever_happens_each_request_gets_its_tokens_and_no_block_is_lost(made: Offloading, data: st.DataObject):
    engine, elsewhere = made
    requests = {}
    for number in range(data.draw(st.integers(2, 14))):
        # Few beginnings, so that many come again after they left the cache.
        begin = [data.draw(st.integers(0, 1))] * data.draw(st.integers(1, 18))
        token_ids = begin + data.draw(st.lists(st.integers(0, 1), max_size=3))
        salt = data.draw(st.sampled_from(["", "", "s"]))
        request = make_request(f"r{number}", token_ids, salt=salt, max_tokens=data.draw(st.integers(1, 9)))
        requests[request.request_id] = request
        engine.add(request)
        for event in data.draw(st.lists(events, max_size=8)):
            if event == "step" and engine.scheduler.has_unfinished():
                engine.step()
            elif event == "abort":
                engine.abort(data.draw(st.sampled_from(sorted(requests))))
            elif event == "reset":
                engine.scheduler.forget_prefixes()
            elif event == "damage" and elsewhere.places:
                elsewhere.damaged = {data.draw(st.sampled_from(sorted(elsewhere.places)))}
            check_blocks(engine.scheduler)
    engine.run()
    check_blocks(engine.scheduler)
    for request in requests.values():
        got, expected = engine.tokens[request.request_id], tokens_alone(request, engine.worker.windows)
        is_aborted = engine.ends[request.request_id].finish_reason == "abort"
        assert got == (expected[: len(got)] if is_aborted else expected)
