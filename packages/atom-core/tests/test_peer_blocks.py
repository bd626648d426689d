"""Two schedulers, one of which computes prompts for the other: tokens are right, and no block is lost."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from atom_core.kv_cache import KVCacheConfig
from atom_core.kv_cache.elsewhere.offload import OffloadedBlocks
from atom_core.kv_cache.elsewhere.peers import PeerBlocks
from atom_core.kv_transfer.config import KVRole, KVTransferConfig
from atom_core.messages import EngineRequest, KVTransferParams, KVTransferStats, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import Slots, blocks_of_request
from block_accounting import check_blocks
from fake_elsewhere import FakeElsewhere
from fake_worker import FakeEngine, pages, tokens_alone

KEEP = KVTransferParams(do_remote_decode=True)
PROMPT = [*range(13), 1, 2, 3, 4]


class Apart(NamedTuple):
    """Engines, and what each keeps for the other."""

    prefill: FakeEngine
    decode: FakeEngine
    offers: dict[str, list[list[int | None]]]


def make_apart(
    *,
    num_blocks: int = 16,
    num_places: int = 16,
    in_memory: int = 0,
    ahead: int = 0,
    num_steps: int = 1,
    windows: tuple[int | None, ...] = (None,),
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 64,
) -> Apart:
    offers: dict[str, list[list[int | None]]] = {}

    def make(role: KVRole) -> FakeEngine:
        ids = itertools.count(1)
        config = KVTransferConfig(
            kv_connector="TcpConnector", kv_role=role, kv_ip="h", kv_port=1, engine_id="e", buffer_bytes=1
        )
        groups = pages(*windows)
        sends = num_places if role == "kv_producer" else 0
        scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=32,
                async_scheduling=ahead > 0,
            ),
            KVCacheConfig(num_blocks=num_blocks, block_size=block_size, groups=groups, prefix_hash="sha256"),
            elsewhere=OffloadedBlocks(in_memory, num_others=sends, ids=ids) if in_memory else None,
            peers=PeerBlocks(
                config, groups=groups, block_size=block_size, first_place=in_memory, num_places=sends, ids=ids
            ),
        )
        engine = FakeEngine(scheduler, num_blocks, block_size, ahead, windows)
        engine.worker.elsewhere = FakeElsewhere(num_steps, offers)
        return engine

    return Apart(make("kv_producer"), make("kv_consumer"), offers)


def make_request(name: str, token_ids: list[int], told: KVTransferParams | None, *, max_tokens: int) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, kv_transfer_params=told)
    return EngineRequest(request_id=name, token_ids=token_ids, sampling_params=params)


def compute(engine: FakeEngine, name: str, token_ids: list[int]) -> KVTransferParams | None:
    """What the engine says of a prompt that it computes for another one."""
    engine.add(make_request(name, token_ids, KEEP, max_tokens=1))
    engine.run()
    return engine.ends[name].kv_transfer_params


def let_others_fetch(engine: FakeEngine) -> None:
    """Steps without requests, as an engine takes them while prompts wait to be fetched."""
    for _ in range(3):
        engine.submit()
        while engine.in_flight:
            engine.report()


def stats_of(engine: FakeEngine) -> KVTransferStats:
    stats = engine.scheduler.stats().kv_transfer
    assert stats is not None
    return stats


def run_apart(apart: Apart, name: str, token_ids: list[int]) -> int:
    """Tokens of a prompt that came from the first engine, or that the second one had; its output is right."""
    told = compute(apart.prefill, name, token_ids)
    let_others_fetch(apart.prefill)
    request = make_request(name, token_ids, told, max_tokens=3)
    apart.decode.add(request)
    apart.decode.run()
    let_others_fetch(apart.prefill)
    assert apart.decode.tokens[name] == tokens_alone(request, apart.decode.worker.windows)
    return apart.decode.outputs[name][-1].num_cached_tokens


@pytest.mark.parametrize("windows", [(None,), (None, 5), (3,), (7, 2), (None, 1)])
@pytest.mark.parametrize("num_tokens", [4, 5, 8, 9, 16, 17])
def test_all_full_blocks_before_the_last_token_come(windows: tuple[int | None, ...], num_tokens: int):
    apart = make_apart(windows=windows)
    assert run_apart(apart, "r", PROMPT[:num_tokens]) == (num_tokens - 1) // 4 * 4
    assert stats_of(apart.prefill).num_kept_prompts == 0
    assert stats_of(apart.prefill).num_free_places == 16
    assert apart.offers == {}


def test_what_the_second_engine_has_is_not_fetched_and_the_first_one_forgets_it():
    apart = make_apart()
    run_apart(apart, "first", PROMPT)
    num_fetched = stats_of(apart.decode).num_fetched_blocks
    assert run_apart(apart, "again", PROMPT) == 16
    assert stats_of(apart.decode).num_fetched_blocks == num_fetched
    assert (stats_of(apart.prefill).num_sent_prompts, stats_of(apart.prefill).num_kept_prompts) == (2, 0)


def test_a_prompt_goes_to_places_and_its_blocks_are_free_at_once():
    apart = make_apart(num_blocks=8)
    assert compute(apart.prefill, "r", PROMPT) is not None
    assert apart.prefill.scheduler.stats().num_free_blocks == 8
    assert stats_of(apart.prefill).num_free_places == 12
    # Others take all of the blocks; what was saved stays as it was.
    compute(apart.prefill, "others", [7] * 30)
    let_others_fetch(apart.prefill)
    assert len(apart.offers) == 2


def test_a_prompt_that_is_aborted_is_not_kept():
    apart = make_apart()
    apart.prefill.add(make_request("r", PROMPT, KEEP, max_tokens=5))
    apart.prefill.step()
    apart.prefill.abort("r")
    assert apart.prefill.ends["r"].kv_transfer_params is None
    assert not apart.prefill.scheduler.awaits_peers


def test_a_request_that_ends_while_it_waits_gives_its_blocks_up_after_the_load():
    apart = make_apart(num_steps=4)
    told = compute(apart.prefill, "r", PROMPT)
    let_others_fetch(apart.prefill)
    apart.decode.add(make_request("r", PROMPT, told, max_tokens=3))
    apart.decode.step()
    assert [state.phase for state in apart.decode.scheduler.states()] == ["waiting for kv"]
    apart.decode.abort("r")
    check_blocks(apart.decode.scheduler)
    while apart.decode.scheduler._cache.num_loading:
        apart.decode.step()
    check_blocks(apart.decode.scheduler)
    assert apart.decode.scheduler.stats().num_free_blocks == 16


def test_what_is_on_its_way_when_prefixes_are_forgotten_is_computed_again():
    apart = make_apart(num_steps=4)
    told = compute(apart.prefill, "r", PROMPT)
    let_others_fetch(apart.prefill)
    request = make_request("r", PROMPT, told, max_tokens=3)
    apart.decode.add(request)
    apart.decode.step()
    apart.decode.scheduler.forget_prefixes()
    apart.decode.run()
    assert apart.decode.tokens["r"] == tokens_alone(request)
    assert apart.decode.ends["r"].num_cached_tokens == 0


def test_an_aborted_request_that_never_ran_lets_the_peer_forget_its_prompt():
    apart = make_apart(max_num_seqs=1)
    told = compute(apart.prefill, "waits", PROMPT)
    let_others_fetch(apart.prefill)
    apart.decode.add(make_request("runs", [5], None, max_tokens=9), make_request("waits", PROMPT, told, max_tokens=1))
    apart.decode.step()
    apart.decode.abort("waits")
    apart.decode.run()
    assert apart.offers == {}


def test_states_do_not_travel():
    with pytest.raises(ValueError, match="no group keeps states"):
        Scheduler(
            SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=32),
            KVCacheConfig(num_blocks=8, block_size=4, groups=(*pages(None), Slots()), num_slots=2, num_snapshots=1),
            peers=make_apart().decode.scheduler._peers,
        )


@st.composite
def pairs(draw: st.DrawFn) -> Apart:
    windows = draw(st.sampled_from([(None,), (None,), (None, 5), (3,), (7, 2), (None, 1)]))
    block_size, budget = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    least = blocks_of_request(pages(*windows), 31, block_size, budget)
    return make_apart(
        num_blocks=least + draw(st.integers(0, 8)),
        num_places=draw(st.integers(0, 60)),
        in_memory=draw(st.sampled_from([0, 0, 20])),
        ahead=draw(st.integers(0, 2)),
        num_steps=draw(st.integers(1, 4)),
        windows=windows,
        block_size=block_size,
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=budget,
    )


events = st.sampled_from(["step", "step", "prefill", "abort", "reset", "lose", "change"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(apart=pairs(), data=st.data())
def test_whatever_happens_each_request_gets_its_tokens_and_no_block_is_lost(apart: Apart, data: st.DataObject):
    requests: dict[str, EngineRequest] = {}
    for number in range(data.draw(st.integers(1, 8))):
        begin = [data.draw(st.integers(0, 1))] * data.draw(st.integers(1, 18))
        token_ids = begin + data.draw(st.lists(st.integers(0, 1), max_size=3))
        name = f"r{number}"
        told = compute(apart.prefill, name, token_ids)
        for event in data.draw(st.lists(events, max_size=6)):
            if event == "step" and apart.decode.scheduler.has_unfinished():
                apart.decode.step()
            elif event == "prefill":
                let_others_fetch(apart.prefill)
            elif event == "abort" and requests:
                apart.decode.abort(data.draw(st.sampled_from(sorted(requests))))
            elif event == "reset":
                apart.decode.scheduler.forget_prefixes()
            elif event == "lose":
                apart.offers.clear()
            elif event == "change" and told is not None:
                told = replace(told, remote_num_tokens=data.draw(st.integers(0, 40)))
            check_blocks(apart.decode.scheduler)
            check_blocks(apart.prefill.scheduler)
        is_whole = told is None or told.remote_num_tokens == _num_kept(apart, token_ids)
        request = make_request(name, token_ids, told if is_whole else None, max_tokens=data.draw(st.integers(1, 9)))
        requests[name] = request
        apart.decode.add(request)
    apart.decode.run()
    check_blocks(apart.decode.scheduler)
    for name, request in requests.items():
        got, expected = apart.decode.tokens[name], tokens_alone(request, apart.decode.worker.windows)
        is_aborted = apart.decode.ends[name].finish_reason == "abort"
        assert got == (expected[: len(got)] if is_aborted else expected)


def _num_kept(apart: Apart, token_ids: list[int]) -> int:
    peers = apart.prefill.scheduler._peers
    assert peers is not None
    return peers.num_kept_tokens(len(token_ids))
