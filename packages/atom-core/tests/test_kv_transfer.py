"""One engine computes prompts, another goes on from them, by each way of pages: tokens are those of one engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atom_core import LLMEngine, SamplingParams
from atom_core.messages import StructuredOutputParams
from engines_apart import (
    GREEDY,
    SETTINGS,
    Apart,
    MakeEngine,
    draw_tokens,
    free_port,
    make_apart,
    num_kept_at_last,
    stepping,
    transfers_of,
)
from meddling_proxy import MeddlingProxy

FAMILIES = {
    "windows": ("gemma3", {}),
    "latents": ("deepseek_v3", {}),
    "latents and index keys": ("deepseek_v32", {}),
    "float8 with scales": ("llama", {"kv_cache_dtype": "fp8_per_token_head"}),
}


WAYS: dict[str, dict[str, Any]] = {
    "shared memory": {},
    "socket": {"extra": {"shared_memory": False}},
    "nixl": {"connector": "NixlConnector"},
}


@pytest.fixture(scope="module", params=WAYS)
def apart(tiny_llama: Path, request: pytest.FixtureRequest) -> Iterator[Apart]:
    engines: list[LLMEngine] = []

    def make(**settings: Any) -> LLMEngine:
        engines.append(LLMEngine(str(tiny_llama), dtype="float32", num_threads=1, seed=0, max_num_seqs=8, **settings))
        return engines[-1]

    if request.param == "nixl":
        pytest.importorskip("nixl")
    way = dict(WAYS[request.param])
    extra = {"timeout": 60.0} | way.pop("extra", {})  # a busy machine must not count as a lost peer
    yield make_apart(make, extra=extra, **way)
    for engine in engines:
        engine.close()


def tokens_of(outputs: list[dict[str, Any]]) -> list[list[int]]:
    return [output["token_ids"] for output in outputs]


ASKED = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=7, max_tokens=8, ignore_eos=True),
    "three samples": SamplingParams(seed=7, n=3, max_tokens=8, ignore_eos=True),
    "penalties": SamplingParams(temperature=0.0, max_tokens=8, presence_penalty=1.5, ignore_eos=True),
    "log-probabilities": SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, ignore_eos=True),
    "those of the prompt": SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1, ignore_eos=True),
    "a grammar": SamplingParams(max_tokens=8, seed=3, structured_outputs=StructuredOutputParams(regex="[ab]{2,6}")),
}


@pytest.mark.parametrize("kind", ASKED)
def test_an_output_is_that_of_a_single_engine(apart: Apart, engine: LLMEngine, kind: str):
    prompt = draw_tokens(len(kind))
    expected = engine.generate([prompt], ASKED[kind], use_tqdm=False)
    outputs = apart.run(prompt, ASKED[kind])
    assert tokens_of(outputs) == tokens_of(expected)
    assert [output["logprobs"] for output in outputs] == [output["logprobs"] for output in expected]
    assert [output["prompt_logprobs"] for output in outputs] == [output["prompt_logprobs"] for output in expected]


def test_all_full_blocks_before_the_last_token_are_fetched(apart: Apart, engine: LLMEngine):
    for num_tokens, num_fetched in ((15, 0), (16, 0), (17, 16), (96, 80), (97, 96), (200, 192)):
        prompt = draw_tokens(num_tokens, num_tokens)
        (output,) = apart.run(prompt)
        assert output["num_cached_tokens"] == num_fetched
        assert output["token_ids"] == engine.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"]


@pytest.mark.parametrize(
    "kind",
    [
        "windows",
        "latents",
        pytest.param("latents and index keys", marks=pytest.mark.slow),
        pytest.param("float8 with scales", marks=pytest.mark.slow),
    ],
)
def test_whatever_a_page_consists_of_travels(make_engine: MakeEngine, tiny_family: Callable[[str], Path], kind: str):
    family, settings = FAMILIES[kind]
    folder = tiny_family(family)
    apart = make_apart(make_engine, folder, **settings)
    alone = make_engine(folder, **SETTINGS | settings)
    for num_tokens in (96, 97, 150):
        prompt = draw_tokens(num_tokens, num_tokens)
        (output,) = apart.run(prompt)
        assert output["num_cached_tokens"] == (num_tokens - 1) // 16 * 16
        assert output["token_ids"] == alone.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"]


def test_what_both_engines_have_already_is_neither_computed_nor_fetched_again(apart: Apart, engine: LLMEngine):
    prompt = draw_tokens(1001)
    apart.run(prompt)
    before = transfers_of(apart.decode)
    (output,) = apart.run([*prompt[:90], *draw_tokens(1002, 30)])
    after = transfers_of(apart.decode)
    assert output["num_cached_tokens"] == 112
    assert after.num_fetched_blocks - before.num_fetched_blocks == 2
    apart.run(prompt)
    assert transfers_of(apart.decode) == after
    assert num_kept_at_last(apart.prefill) == 0


def test_a_request_waits_for_kv_while_others_decode(make_engine: MakeEngine, engine: LLMEngine):
    port, may_come, prompt = free_port(), threading.Event(), draw_tokens(1003)
    with MeddlingProxy(port, lambda data, before: may_come.wait(60)) as proxy:
        apart = make_apart(make_engine, port=port, extra={"timeout": 60.0, "peers": [f"127.0.0.1:{proxy.port}"]})
        told = apart.compute(prompt)
        assert told is not None
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        params = replace(params, kv_transfer_params=replace(told, remote_port=proxy.port))
        decode: Any = apart.decode
        decode.add_request([draw_tokens(1004, 20)], GREEDY)
        decode.add_request([prompt], params)
        ended = []
        while not ended:
            ended += decode.step()
        assert [state.phase for state in decode._core.states()] == ["waiting for kv"]
        assert decode.stats.num_waiting_for_kv == 1
        may_come.set()
        with stepping(apart.prefill):
            while len(ended) < 2:
                ended += decode.step()
    assert ended[1]["token_ids"] == engine.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"][:5]
    assert ended[1]["num_cached_tokens"] == 96


@pytest.mark.slow
def test_each_rank_moves_its_own_part_to_the_same_rank(make_engine: MakeEngine, engine: LLMEngine):
    apart = make_apart(make_engine, extra={"timeout": 60.0}, tensor_parallel_size=2)
    prompt = draw_tokens(1005)
    expected = engine.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"]
    (output,) = apart.run(prompt)
    assert (output["token_ids"], output["num_cached_tokens"]) == (expected, 96)
    assert num_kept_at_last(apart.prefill) == 0


@pytest.mark.slow
def test_prompts_travel_between_engines_that_also_keep_blocks_elsewhere(make_engine: MakeEngine, engine: LLMEngine):
    apart = make_apart(make_engine, extra={"timeout": 60.0}, num_kv_blocks=20, kv_offload_memory="1MiB")
    prompts = [draw_tokens(1010 + number, 200) for number in range(3)]
    expected = [engine.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"] for prompt in prompts]
    assert [apart.run(prompt)[0]["token_ids"] for prompt in prompts] == expected
    assert transfers_of(apart.decode).num_fetched_blocks == 36
    again = apart.decode.generate(prompts[:1], GREEDY, use_tqdm=False)
    assert (again[0]["token_ids"], again[0]["num_cached_tokens"]) == (expected[0], 192)
    stats = apart.decode.stats.offload
    assert stats is not None
    assert stats.num_loaded_from_memory > 0
