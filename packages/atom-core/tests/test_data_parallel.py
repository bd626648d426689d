"""Two engines behind one front: the tokens of one, requests where their prefixes are, and all that is asked of both."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atom_core import AsyncEngine, EngineArgs, InvalidRequestError, SamplingParams, StructuredOutputParams
from atom_core.messages import Pooling

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 16, "num_threads": 1, "seed": 0}
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@asynccontextmanager
async def running(model: Path, **overrides: Any) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(EngineArgs(model=str(model), data_parallel_size=2, **{**SMALL, **overrides}))
    try:
        yield engine
    finally:
        await engine.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_llama: Path) -> AsyncIterator[AsyncEngine]:
    """Two engines for the tests that leave them as they found them."""
    async with running(tiny_llama) as engine:
        yield engine


async def tokens_of(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> list[list[int]]:
    tokens: dict[int, list[int]] = {}
    async for output in engine.generate(prompt, params):
        assert output.error is None
        tokens.setdefault(output.index, []).extend(output.output_tokens)
    return [tokens[index] for index in sorted(tokens)]


async def until(condition, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def is_idle(engine: AsyncEngine) -> bool:
    return all(
        status.stats is not None
        and status.stats.num_running == status.stats.num_waiting == 0
        and status.stats.num_free_blocks == status.stats.num_blocks
        for status in engine.engines
    )


def numbers(engine: AsyncEngine, name: str) -> list[int]:
    """A count of each engine."""
    return [getattr(status.stats, name) for status in engine.engines]


async def test_two_engines_give_the_tokens_of_one(engine: AsyncEngine, make_engine):
    prompts = [[7, 8, 9], [100] * 40, list(range(3, 80)), [5] * 20]
    all_params = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20, ignore_eos=True, n=3),
        SamplingParams(temperature=1.0, seed=7, max_tokens=20, ignore_eos=True),
        SamplingParams(max_tokens=30, structured_outputs=StructuredOutputParams(regex="[a-f]{3,9}"), seed=1),
    ]
    one = make_engine().generate(prompts, all_params, use_tqdm=False)
    found = await asyncio.gather(*(tokens_of(engine, *each) for each in zip(prompts, all_params, strict=True)))
    assert [tokens for samples in found for tokens in samples] == [output["token_ids"] for output in one]


async def test_both_engines_work_and_streams_come_from_both(engine: AsyncEngine):
    streams = [engine.generate([3 + index] * 20, LONG) for index in range(6)]
    for stream in streams:
        await anext(stream)
    await until(lambda: numbers(engine, "num_running") == [3, 3])
    for stream in streams:
        await stream.aclose()
    await until(lambda: is_idle(engine))
    assert engine.num_unfinished_requests == 0


async def test_prompts_of_one_request_are_dealt_out_and_their_samples_stay_together(engine: AsyncEngine):
    stream = engine.submit(
        [[3 + index] * 20 for index in range(4)], SamplingParams(n=2, max_tokens=400, ignore_eos=True)
    )
    seen: set[tuple[str, int]] = set()
    while len(seen) < 8:
        output = await anext(stream)
        seen.add((output.request_id, output.index))
    await until(lambda: numbers(engine, "num_running") == [4, 4])
    states = Counter(state.caller_id for state in await engine.control.request_states())
    assert states == dict.fromkeys(stream.request_ids, 2)
    await engine.abort(stream)
    ends = [output.finish_reason async for output in stream if output.finished]
    assert ends == ["abort"] * 8
    await until(lambda: is_idle(engine))


async def test_prompts_of_one_request_that_share_a_prefix_do_not_all_go_to_one_engine(engine: AsyncEngine):
    stream = engine.submit([[9] * 64 + [3 + index] for index in range(8)], LONG)
    assert Counter(stream.engines) == {0: 4, 1: 4}
    await stream.aclose()
    await until(lambda: is_idle(engine))


async def test_embeddings_of_many_prompts_come_from_both(engine: AsyncEngine, make_engine):
    prompts = [[3 + index] * 24 for index in range(4)]
    stream = engine.submit(prompts, Pooling())
    vectors = {output.request_id: output.embedding async for output in stream}
    assert [vectors[request_id] for request_id in stream.request_ids] == make_engine().embed(prompts, "mean")


async def test_a_refused_request_leaves_nothing_at_either_engine(engine: AsyncEngine):
    too_large = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputParams(json={"const": 10**30}))
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        engine.submit([[3] * 20, [4] * 20], too_large)
    assert engine.num_unfinished_requests == 0


async def test_limits_are_those_of_both_together(engine: AsyncEngine):
    limits = engine.queue_limits
    assert limits.max_num_seqs == 32
    assert limits.max_num_queued_requests == 4 * 32


async def test_a_pause_stops_both(engine: AsyncEngine):
    await engine.control.pause()
    streams = [engine.generate([3 + index] * 20, SHORT) for index in range(4)]
    states = await engine.control.request_states()
    assert [(state.phase, state.num_computed_tokens) for state in states] == [("waiting", 0)] * 4
    await engine.control.resume()
    for stream in streams:
        assert [output async for output in stream][-1].finish_reason == "length"


async def test_a_reset_prefix_cache_is_forgotten_by_the_front_too(engine: AsyncEngine):
    async def num_cached() -> int:
        return [output async for output in engine.generate([17] * 64, SHORT)][-1].num_cached_tokens

    assert [await num_cached() for _ in range(2)] == [0, 48]
    await engine.control.reset_prefix_cache()
    assert engine._replicas._router.route([17] * 64, {}).num_to_compute == 64
    await engine.control.reset_prefix_cache()
    assert [await num_cached() for _ in range(2)] == [0, 48]


async def test_prefixes_are_found_where_they_are(engine: AsyncEngine):
    order = [first for first in range(8) for _ in range(3)]
    random.Random(0).shuffle(order)
    await engine.control.reset_prefix_cache()
    found: dict[int, list[int]] = {first: [] for first in range(8)}
    for index, first in enumerate(order):
        # Requests that may grow lie apart, and so take no cached block of a neighbor.
        stream = engine.generate([200 + first] * 64 + [3 + index, 7], LONG)
        found[first].append((await anext(stream)).num_cached_tokens)
        await stream.aclose()
        await until(lambda: len(engine._replicas._samples) == 0)
    assert list(found.values()) == [[0, 64, 64]] * 8


@pytest.mark.slow
async def test_two_engines_of_two_ranks_give_the_tokens_of_one(tiny_llama: Path, make_engine):
    prompts, params = [[3 + index] * 20 for index in range(4)], SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
    one = make_engine().generate(prompts, params, use_tqdm=False)
    async with running(tiny_llama, tensor_parallel_size=2) as engine:
        found = await asyncio.gather(*(tokens_of(engine, prompt, params) for prompt in prompts))
    assert [tokens for samples in found for tokens in samples] == [output["token_ids"] for output in one]
