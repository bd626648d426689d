"""Whatever becomes of the engine that computed a prompt, or of the way there: the prompt is computed here, soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from atom_core import LLMEngine
from atom_core.messages import KVTransferParams
from engines_apart import GREEDY, Apart, MakeEngine, draw_tokens, free_port, make_apart, stepping, transfers_of
from meddling_proxy import MeddlingProxy

PROMPT = draw_tokens(2000)


@pytest.fixture
def expected(engine: LLMEngine) -> list[int]:
    return engine.generate([PROMPT], GREEDY, use_tqdm=False)[0]["token_ids"]


def computes_itself(apart: Apart, told: KVTransferParams | None, expected: list[int]) -> bool:
    """Whether the second engine computes the prompt itself, with the same tokens, and counts that."""
    before = transfers_of(apart.decode).num_failed_fetches
    (output,) = apart.go_on(PROMPT, told)
    assert output["token_ids"] == expected
    return output["num_cached_tokens"] == 0 and transfers_of(apart.decode).num_failed_fetches == before + 1


def told_of(apart: Apart) -> KVTransferParams:
    told = apart.compute(PROMPT)
    assert told is not None
    return told


def test_an_engine_that_is_gone_is_not_waited_for(make_engine: MakeEngine, expected: list[int]):
    apart = make_apart(make_engine)
    told = told_of(apart)
    apart.prefill.close()
    begun = time.monotonic()
    (output,) = apart.decode.generate([PROMPT], replace(GREEDY, kv_transfer_params=told), use_tqdm=False)
    assert (output["token_ids"], output["num_cached_tokens"]) == (expected, 0)
    assert transfers_of(apart.decode).num_failed_fetches == 1
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "change",
    [
        {"remote_host": "127.0.0.2"},
        {"remote_port": 1},
        {"remote_num_tokens": 0},
        {"remote_num_tokens": 95},
        {"remote_num_tokens": 112},
        {"remote_engine_id": "another"},
        {"remote_request_id": "another"},
    ],
    ids=str,
)
def test_what_was_changed_on_the_way_is_of_no_use(faulty: Apart, expected: list[int], change: dict[str, Any]):
    assert computes_itself(faulty, replace(told_of(faulty), **change), expected)


def test_the_prompt_of_another_request_is_of_no_use(faulty: Apart, expected: list[int]):
    told = faulty.compute(draw_tokens(2001))
    assert computes_itself(faulty, told, expected)


@pytest.fixture
def faulty(make_engine: MakeEngine) -> Apart:
    """Engines with short limits."""
    return make_apart(make_engine, extra={"timeout": 0.4, "hold_seconds": 0.3})


def test_a_prompt_that_nobody_fetches_is_counted_and_its_memory_is_free_again(faulty: Apart, expected: list[int]):
    num_free = transfers_of(faulty.prefill).num_free_places
    told = told_of(faulty)
    assert transfers_of(faulty.prefill).num_free_places == num_free - 6
    with stepping(faulty.prefill):
        while transfers_of(faulty.prefill).num_kept_prompts:
            time.sleep(0.01)
    stats = transfers_of(faulty.prefill)
    assert (stats.num_free_places, stats.num_expired_prompts, stats.num_sent_prompts) == (num_free, 1, 0)
    assert computes_itself(faulty, told, expected)


def test_a_prompt_without_room_is_not_kept_and_counted(make_engine: MakeEngine):
    apart = make_apart(make_engine, buffer_bytes=1 << 14)
    assert apart.compute(PROMPT) is None
    assert transfers_of(apart.prefill).num_not_kept_prompts == 1


def test_an_engine_of_another_layout_computes_prompts_itself(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, expected: list[int]
):
    apart = make_apart(make_engine, of_decode={"kv_cache_dtype": "bf16"})
    (output,) = apart.go_on(PROMPT, told_of(apart))
    assert output["num_cached_tokens"] == 0
    assert "the engines differ in kv_cache_dtype: float32 sends, and bfloat16 fetches" in caplog.text


def hold_back(data: bytearray, before: int) -> bool:
    time.sleep(2)
    return False


def cut(data: bytearray, before: int) -> bool:
    del data[max(90 - before, 0) :]  # in the first frame of pages
    return bool(data)


def damage(data: bytearray, before: int) -> bool:
    data[-1] ^= 4
    return True


@pytest.mark.parametrize("meddle", [hold_back, cut, damage])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared memory", "socket"])
def test_a_bad_connection_ends_in_a_computed_prompt(
    make_engine: MakeEngine, expected: list[int], meddle: Callable[[bytearray, int], bool], is_shared: bool
):
    port = free_port()
    with MeddlingProxy(port, meddle) as proxy:
        extra = {"timeout": 0.5, "peers": [f"127.0.0.1:{proxy.port}"], "shared_memory": is_shared}
        apart = make_apart(make_engine, port=port, extra=extra)
        assert computes_itself(apart, replace(told_of(apart), remote_port=proxy.port), expected)
    assert proxy.num_connections == 1
