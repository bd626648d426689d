"""Engines in processes of their own that share experts: they start, answer, and end with the first one that dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import running_engines
from atom_core import EngineDeadError, SamplingParams
from atom_core.errors import EngineBusyError
from running_engines import until
from shared_ranks import GREEDY, PROMPTS, make_engine, outputs

pytestmark = pytest.mark.asyncio

LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


async def test_the_engines_give_the_tokens_of_one_and_all_end_with_one_that_is_killed(tiny_family, caplog):
    model: Path = tiny_family("qwen3_moe")
    with make_engine(model) as alone:
        expected = outputs(alone, params=GREEDY)
    settings = {"tensor_parallel_size": 2, "enable_dp_attention": True}
    async with running_engines.running(model, **settings) as engine, asyncio.timeout(120):
        for prompts in (PROMPTS, PROMPTS[:1]):  # the second time one of them only computes for the other
            streams = [engine.generate(prompt, GREEDY) for prompt in prompts]
            found = [[token async for output in stream for token in output.output_tokens] for stream in streams]
            assert found == expected[: len(prompts)]
        with pytest.raises(EngineBusyError, match="need each other's experts"):
            await engine.control.sleep(1, end_open=_nothing)

        await engine.control.pause()
        waiting = engine.generate(PROMPTS[0], GREEDY)
        await engine.control.resume()
        assert [token async for output in waiting for token in output.output_tokens] == expected[0]

        streams = [engine.generate([3 + index] * 20, LONG) for index in range(4)]
        for stream in streams:
            await anext(stream)
        pid = engine.engines[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            last = [output async for output in stream][-1]
            assert (last.finish_reason, last.error_code) == ("error", "engine_dead")
        await until(lambda: [status.state for status in engine.engines] == ["dead", "dead"])
        assert "SIGKILL" in (engine.engines[1].cause or "")
        assert "engine 1" in (engine.engines[0].cause or "")
        assert not engine.is_recovering
        with pytest.raises(EngineDeadError, match="none of 2 engines works"):
            engine.check_health()


async def _nothing() -> None: ...
