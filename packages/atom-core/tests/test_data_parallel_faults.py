"""What is done to one of two engines: its streams are told, the other goes on, and it is started anew, once."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import running_engines
from atom_core import AsyncEngine, EngineArgs, EngineDeadError, EngineStartError, SamplingParams
from child_processes import children_of
from running_engines import small_args, until

pytestmark = pytest.mark.asyncio

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


def make_args(model: Path, **overrides: Any) -> EngineArgs:
    return small_args(model, data_parallel_size=2, **overrides)


def running(model: Path, **overrides: Any) -> AbstractAsyncContextManager[AsyncEngine]:
    # Kernels are called one by one, so that long requests still run when an engine is struck.
    return running_engines.running(model, data_parallel_size=2, enforce_eager=True, **overrides)


def states(engine: AsyncEngine) -> list[str]:
    return [status.state for status in engine.engines]


def strike(engine: AsyncEngine, rank: int, number: int = signal.SIGKILL) -> None:
    pid = engine.engines[rank].pid
    assert pid is not None
    os.kill(pid, number)


async def ends_of(streams) -> list[tuple[str | None, str | None]]:
    """How each stream ends: its finish reason, and the kind of its error."""
    ends = []
    async with asyncio.timeout(60):
        for stream in streams:
            last = [output async for output in stream][-1]
            ends.append((last.finish_reason, last.error_code))
    return ends


LOST, WHOLE = ("error", "engine_dead"), ("length", None)


async def test_one_of_two_engines_dies_is_started_anew_paused_as_the_other_and_dies_for_good(tiny_llama: Path, caplog):
    async with running(tiny_llama) as engine:
        streams = [engine.generate([3 + index] * 20, LONG) for index in range(4)]
        for stream in streams:
            await anext(stream)
        strike(engine, 1)
        assert await ends_of(streams) == [WHOLE, LOST, WHOLE, LOST]
        assert engine.queue_limits.max_num_seqs in (16, 32)
        engine.check_health()
        assert (await ends_of([engine.generate([3] * 20, SHORT) for _ in range(3)])) == [WHOLE] * 3

        await engine.control.pause()  # it holds for the engine that is not there yet, too
        await until(lambda: states(engine) == ["serving", "serving"])
        assert engine.control.is_paused
        await nothing_runs_until_it_is_resumed(engine, range(50, 54))
        assert (engine.num_restarts, engine.engines[1].num_restarts) == (1, 1)
        assert (
            engine.engines[1].cause
            == "the engine's process was ended by SIGKILL (out of memory? lower --kv-cache-memory)"
        )

        strike(engine, 1)
        await until(lambda: states(engine) == ["serving", "dead"])
        assert not engine.is_recovering
        assert engine.queue_limits.max_num_seqs == 16
        engine.check_health()
        assert await ends_of([engine.generate([3] * 20, SHORT) for _ in range(3)]) == [WHOLE] * 3
        assert "engine 1 stays down; 1 others serve" in caplog.text

        strike(engine, 0)  # it has a life to spare
        await until(lambda: states(engine) == ["restarting", "dead"])
        with pytest.raises(
            EngineDeadError, match="none of 2 engines works: engine 0: .*SIGKILL.*; engine 1: .*SIGKILL"
        ):
            engine.check_health()
        assert engine.is_recovering
        await until(lambda: states(engine) == ["serving", "dead"])
        engine.check_health()

        strike(engine, 0)
        await until(lambda: states(engine) == ["dead", "dead"])
        assert not engine.is_recovering
        with pytest.raises(EngineDeadError):
            engine.generate([3], SHORT)


@pytest.mark.slow
async def test_an_engine_that_is_stopped_is_ended_and_the_other_goes_on(tiny_llama: Path):
    async with running(tiny_llama, step_timeout=2.0) as engine:
        streams = [engine.generate([3 + index] * 20, LONG) for index in range(4)]
        for stream in streams:
            await anext(stream)
        strike(engine, 0, signal.SIGSTOP)
        assert await ends_of(streams) == [LOST, WHOLE, LOST, WHOLE]
        assert "said nothing for" in (engine.engines[0].cause or "")
        engine.check_health()
        assert await ends_of([engine.generate([3] * 20, SHORT) for _ in range(3)]) == [WHOLE] * 3
        await until(lambda: states(engine) == ["serving", "serving"])
        assert (engine.num_restarts, engine.engines[0].num_restarts) == (1, 1)
        assert await ends_of([engine.generate([3] * 20, SHORT) for _ in range(4)]) == [WHOLE] * 4


async def nothing_runs_until_it_is_resumed(engine: AsyncEngine, tokens: range) -> None:
    """Each engine has two requests, of a prompt of one of the tokens, which nobody has in the cache."""
    streams = [engine.generate([token] * 20, SHORT) for token in tokens]
    await until(lambda: [status.stats and status.stats.num_waiting for status in engine.engines] == [2, 2])
    found = await engine.control.request_states()
    assert [(state.phase, state.num_computed_tokens) for state in found] == [("waiting", 0)] * 4
    await engine.control.resume()
    assert await ends_of(streams) == [WHOLE] * 4


@pytest.mark.slow
async def test_a_pause_holds_for_an_engine_that_is_started_anew_meanwhile(tiny_llama: Path):
    async with running(tiny_llama) as engine:
        strike(engine, 0)
        await until(lambda: states(engine) == ["restarting", "serving"])
        strike(engine, 1, signal.SIGSTOP)  # it answers once it goes on
        pausing = asyncio.ensure_future(engine.control.pause())
        await until(lambda: states(engine)[0] == "serving")
        strike(engine, 1, signal.SIGCONT)
        await pausing
        await nothing_runs_until_it_is_resumed(engine, range(3, 7))


@pytest.mark.slow
async def test_those_that_are_left_answer_a_question_and_a_shutdown_ends_those_that_start_anew(
    tiny_llama: Path,
):
    async with running(tiny_llama) as engine:
        await engine.control.pause()
        stream = engine.generate([3] * 20, SHORT)
        strike(engine, 1, signal.SIGSTOP)
        asked = asyncio.ensure_future(engine.control.request_states())
        await asyncio.sleep(0)
        strike(engine, 1)
        assert [state.caller_id for state in await asked] == stream.request_ids
        await until(lambda: states(engine) == ["serving", "restarting"])
        await asyncio.sleep(0.5)
        pids = [status.pid for status in engine.engines]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_a_start_in_which_one_engine_fails_ends_with_its_name(tiny_llama: Path):
    starting = asyncio.create_task(AsyncEngine.start(make_args(tiny_llama)))
    pids: list[int] = []

    def found() -> bool:
        pids[:] = children_of(os.getpid(), "core_process")
        return len(pids) == 2

    await until(found)
    os.kill(max(pids), signal.SIGKILL)
    with pytest.raises(EngineStartError, match="engine 1: the engine's process was ended by SIGKILL"):
        await starting
    await until(lambda: not found() and not pids)
