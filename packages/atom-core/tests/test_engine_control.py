"""What is asked of an engine as a whole: where requests stand, a pause, an empty prefix cache, sleep."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import pytest_asyncio

from atom_core import (
    AsyncEngine,
    EngineArgs,
    EngineAsleepError,
    EngineBusyError,
    EngineDeadError,
    SamplingParams,
    StructuredOutputParams,
)
from running_engines import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


async def start(model, **settings):
    fields = {"dtype": "float32", "num_kv_blocks": 128, "max_num_seqs": 2, "num_threads": 1, "seed": 0}
    return await AsyncEngine.start(EngineArgs(model=str(model), **fields | settings))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_llama):
    """One engine for the tests that leave it as they found it; the last one ends it."""
    engine = await start(tiny_llama)
    yield engine
    await engine.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def paused(engine):
    """The engine, paused until the test ends."""
    await engine.control.pause()
    yield engine
    await engine.control.resume()


async def tokens_of(stream):
    return [token_id async for output in stream for token_id in output.output_tokens]


async def num_cached(engine, prompt):
    return [output async for output in engine.generate(prompt, SHORT)][-1].num_cached_tokens


async def test_a_request_that_waits_says_so(paused):
    stream = paused.generate([9] * 40, LONG)
    [state] = await paused.control.request_states()
    assert (state.caller_id, state.phase, state.num_output_tokens) == (stream.request_ids[0], "waiting", 0)
    await stream.aclose()


async def test_a_request_whose_grammar_is_not_ready_says_so(paused):
    # A grammar is looked at between steps, and there are none.
    params = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputParams(regex="[a-f]+"))
    stream = paused.generate([3, 4], params)
    [state] = await paused.control.request_states()
    assert (state.caller_id, state.phase) == (stream.request_ids[0], "compiling grammar")
    await stream.aclose()


async def test_a_pause_changes_no_token(engine):
    alone = await tokens_of(engine.generate([3, 4, 5], LONG))
    stream = engine.generate([3, 4, 5], LONG)
    begin = (await anext(stream)).output_tokens
    await engine.control.pause()
    await engine.control.resume()
    assert begin + await tokens_of(stream) == alone


async def test_nothing_runs_while_an_engine_is_paused_and_what_comes_waits(paused):
    stream = paused.generate([3, 4, 5], SHORT)
    for _ in range(3):
        [state] = await paused.control.request_states()
        assert (state.phase, state.num_computed_tokens) == ("waiting", 0)
    assert paused.control.is_paused
    await paused.control.resume()
    assert len(await tokens_of(stream)) == 8


@pytest.mark.timing
async def test_a_paused_engine_does_not_count_as_hung(tiny_llama):
    engine = await start(tiny_llama, step_timeout=2)
    await engine.control.pause()
    stream = engine.generate([3, 4, 5], SHORT)
    await asyncio.sleep(5)
    await engine.control.resume()
    assert len(await tokens_of(stream)) == 8
    await engine.shutdown()


async def test_requests_can_be_ended_while_an_engine_is_paused(paused):
    stream = paused.generate([3, 4, 5], LONG)
    await paused.abort(stream)
    assert [output.finish_reason async for output in stream] == ["abort"]


async def test_after_a_reset_no_prefix_is_found(engine):
    prompt = [17] * 64
    assert [await num_cached(engine, prompt) for _ in range(2)] == [0, 48]
    await engine.control.reset_prefix_cache()
    assert [await num_cached(engine, prompt) for _ in range(2)] == [0, 48]


async def test_a_reset_changes_no_token_of_what_runs(engine):
    alone = await tokens_of(engine.generate([23] * 40, LONG))
    stream = engine.generate([23] * 40, LONG)
    begin = (await anext(stream)).output_tokens
    await engine.control.reset_prefix_cache()
    assert begin + await tokens_of(stream) == alone


async def test_an_engine_ends_what_is_open_and_sleeps(engine):
    stream = engine.generate([5] * 40, LONG)
    await anext(stream)
    await engine.sleep(2)
    assert [output.finish_reason async for output in stream][-1] == "abort"
    with pytest.raises(EngineAsleepError):
        engine.generate([5], SHORT)
    with pytest.raises(EngineBusyError):
        await engine.sleep()
    await engine.wake_up()
    assert [output async for output in engine.generate([5], SHORT)][-1].finish_reason == "length"
    await until(lambda: engine.stats.num_free_blocks == engine.stats.num_blocks)


async def test_a_question_to_an_engine_that_dies_is_answered_by_an_error(engine):
    await engine.control.pause()
    os.kill(engine.pid, signal.SIGSTOP)
    asked = asyncio.ensure_future(engine.control.request_states())
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        await asked
    with pytest.raises(EngineDeadError):
        await engine.control.resume()
    assert not engine.control.is_paused
