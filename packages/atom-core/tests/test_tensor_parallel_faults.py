"""What is done to an engine of two ranks or stages: streams are told, the cause is named, nothing is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import running_engines
from atom_core import AsyncEngine, EngineArgs, EngineDeadError, EngineStartError, SamplingParams
from child_processes import children_of
from running_engines import small_args, until

# Seconds are the fact itself.
pytestmark = [pytest.mark.asyncio, pytest.mark.timing]

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
IN_TIME = 5.0


def make_args(model: Path, **overrides: Any) -> EngineArgs:
    return small_args(model, tensor_parallel_size=2, **overrides)


def running(
    model: Path, of_two: str = "tensor_parallel_size", **overrides: Any
) -> AbstractAsyncContextManager[AsyncEngine]:
    return running_engines.running(model, **{of_two: 2}, **overrides)


def rank_pids(parent: int) -> list[int]:
    """Ids of the ranks of an engine's process, by rank."""
    return children_of(parent, "processes.worker")


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def engine_pid(engine: AsyncEngine) -> int:
    assert engine.pid is not None
    return engine.pid


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("of_two", ["tensor_parallel_size", "pipeline_parallel_size"])
async def test_a_killed_rank_ends_every_stream_with_its_name(of_two: str, rank: int, tiny_llama: Path):
    async with running(tiny_llama, of_two) as engine:
        pids = rank_pids(engine_pid(engine))
        streams = [engine.generate([3] * 20, LONG) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        started = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        for stream in streams:
            last = [output async for output in stream][-1]
            assert last.finish_reason == "error"
            assert f"rank {rank} was ended by SIGKILL" in (last.error or "")
        assert time.monotonic() - started < IN_TIME
        with pytest.raises(EngineDeadError, match=f"rank {rank} was ended by SIGKILL"):
            engine.check_health()
        await until(lambda: not any(map(is_there, pids)))


async def test_a_rank_killed_while_nothing_runs_ends_the_engine_which_can_be_started_anew(tiny_llama: Path):
    async with running(tiny_llama) as engine:
        await asyncio.sleep(1.0)  # until it only waits for requests
        os.kill(rank_pids(engine_pid(engine))[1], signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(EngineDeadError, match="rank 1 was ended by SIGKILL"):  # noqa: PT012
            while time.monotonic() - started < IN_TIME:
                engine.check_health()
                await asyncio.sleep(0.02)
        await engine.restart()
        outputs = [output async for output in engine.generate([3] * 20, SamplingParams(max_tokens=3, ignore_eos=True))]
        assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_killed_during_the_start_ends_it_with_its_name(rank: int, tiny_llama: Path):
    starting = asyncio.create_task(AsyncEngine.start(make_args(tiny_llama)))

    def found() -> list[int]:
        return [pid for child in children_of(os.getpid()) for pid in rank_pids(child)]

    await until(lambda: len(found()) == 2)
    pids = found()
    started = time.monotonic()
    os.kill(pids[rank], signal.SIGKILL)
    with pytest.raises(EngineStartError, match=f"rank {rank} was ended by SIGKILL"):
        await starting
    assert time.monotonic() - started < IN_TIME
    assert not any(map(is_there, pids))


@pytest.mark.parametrize(
    ("of_two", "rank"), [("tensor_parallel_size", 0), ("tensor_parallel_size", 1), ("pipeline_parallel_size", 1)]
)
async def test_a_stopped_rank_is_named_after_the_step_timeout_and_goes_with_the_engine(
    of_two: str, rank: int, tiny_llama: Path
):
    async with running(tiny_llama, of_two, step_timeout=2.0) as engine:
        pids, folder = rank_pids(engine_pid(engine)), engine.folder
        stream = engine.generate([3] * 20, LONG)
        await anext(stream)
        os.kill(pids[rank], signal.SIGSTOP)
        async with asyncio.timeout(8):
            outputs = [output async for output in stream]
        assert re.search(rf"no step has ended for \d s, rank {rank} was stopped by a signal ", outputs[-1].error or "")
        await until(lambda: not any(map(is_there, pids)))
    assert not os.path.exists(folder)


async def test_a_killed_engine_takes_its_ranks_along(tiny_llama: Path):
    async with running(tiny_llama) as engine:
        pids = rank_pids(engine_pid(engine))
        assert len(pids) == 2
        os.kill(engine_pid(engine), signal.SIGKILL)
        await until(lambda: not any(map(is_there, pids)), IN_TIME)


async def test_shutting_down_leaves_no_rank(tiny_llama: Path):
    async with running(tiny_llama) as engine:
        pids = rank_pids(engine_pid(engine))
        outputs = [output async for output in engine.generate([3] * 20, SamplingParams(max_tokens=3, ignore_eos=True))]
        assert outputs[-1].finish_reason == "length"
    assert not any(map(is_there, pids))
