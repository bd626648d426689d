"""The engine in its own process: same tokens, aborts, deaths, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import zmq

from atom_core import (
    AsyncEngine,
    EngineArgs,
    EngineDeadError,
    EngineStartError,
    InvalidRequestError,
    ProfilerError,
    SamplingParams,
    StepStats,
    StructuredOutputParams,
)
from atom_core.engine.process.supervisor import COLD_SECONDS, STEPS_UNTIL_WARM, WARM_SECONDS, step_limit
from atom_core.engine.process.wire import Pulse, news_address, request_address

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 128, "max_num_seqs": 16, "num_threads": 1, "seed": 0}
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


@asynccontextmanager
async def running(model: Path, **overrides: Any) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(EngineArgs(model=str(model), **{**SMALL, **overrides}))
    try:
        yield engine
    finally:
        await engine.shutdown()


PROMPTS = [[7, 8, 9], [100] * 40, list(range(3, 80))]
EACH_PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20, ignore_eos=True, n=3),
    SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True),  # with a seed that the engine draws
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine_and_first_tokens(tiny_llama: Path) -> AsyncIterator[tuple[AsyncEngine, list[list[int]]]]:
    """An engine, and what it gave to each sample of `PROMPTS` before anything else."""
    async with running(tiny_llama) as engine:
        asked = zip(PROMPTS, EACH_PARAMS, strict=True)
        found = await asyncio.gather(*(tokens_of(engine, *each) for each in asked))
        yield engine, [tokens[index] for tokens in found for index in sorted(tokens)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(engine_and_first_tokens) -> AsyncEngine:
    """One engine for the tests that leave it as they found it."""
    return engine_and_first_tokens[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncEngine]:
    """One engine of small limits, and with a folder for traces, for the tests that leave it as they found it."""
    async with running(
        tiny_llama,
        max_num_seqs=2,
        max_num_queued_requests=2,
        max_num_queued_tokens=50,
        max_request_logprobs=100,
        torch_profiler_dir=str(tmp_path_factory.mktemp("traces")),
    ) as engine:
        yield engine


async def tokens_of(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for output in engine.generate(prompt, params):
        assert output.error is None
        tokens.setdefault(output.index, []).extend(output.output_tokens)
    return tokens


async def until(condition, seconds: float = 3.0) -> None:
    """Wait for something to become true; TimeoutError if it does not."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def process_exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def child_processes() -> set[int]:
    """Ids of the processes that this one started and that still run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(folder.name))
    return found


def all_blocks_are_free(engine: AsyncEngine) -> bool:
    stats = engine.stats
    return stats is not None and stats.num_free_blocks == stats.num_blocks and stats.num_running == 0


async def test_a_process_gives_the_tokens_of_the_inline_engine(engine_and_first_tokens, make_engine):
    inline = make_engine().generate(PROMPTS, EACH_PARAMS, use_tqdm=False)
    assert engine_and_first_tokens[1] == [output["token_ids"] for output in inline]


async def test_closing_a_stream_gives_its_blocks_back(engine):
    streams = [engine.generate([3 + index] * 20, LONG) for index in range(4)]
    for stream in streams:
        await anext(stream)
    assert not all_blocks_are_free(engine)
    for stream in streams:
        await stream.aclose()
    await until(lambda: all_blocks_are_free(engine))
    assert engine.num_unfinished_requests == 0


async def test_a_dropped_stream_gives_its_blocks_back_too(engine):
    stream = engine.generate([3] * 20, LONG)
    await anext(stream)
    del stream
    await asyncio.sleep(0.01)
    assert engine.num_unfinished_requests == 0  # long before its last token
    await until(lambda: all_blocks_are_free(engine))


async def test_an_aborted_request_ends_with_the_reason_abort(engine):
    stream = engine.generate([3] * 20, LONG)
    await anext(stream)
    await engine.abort(stream)
    outputs = [output async for output in stream]
    assert outputs[-1].finished
    assert outputs[-1].finish_reason == "abort"
    await engine.abort(stream)  # long gone


async def test_of_several_prompts_all_are_taken_or_none(engine):
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with pytest.raises(InvalidRequestError):
        engine.submit([[3], []], params)
    assert engine.num_unfinished_requests == 0
    stream = engine.submit([[3], [4]], params)
    tokens: dict[str, list[int]] = {}
    async for output in stream:
        tokens.setdefault(output.request_id, []).extend(output.output_tokens)
    assert [tokens[request_id] for request_id in stream.request_ids] == [
        (await tokens_of(engine, prompt, params))[0] for prompt in ([3], [4])
    ]


async def test_nothing_more_is_taken_once_the_queue_is_full(limited):
    some = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    streams = [limited.generate([3] * 10, some) for _ in range(4)]
    with pytest.raises(InvalidRequestError) as caught:
        limited.generate([4], some)
    assert caught.value.code == "queue_full"
    for stream in streams:
        assert sum([len(output.output_tokens) async for output in stream]) == some.max_tokens
    assert len((await tokens_of(limited, [4], SamplingParams(max_tokens=2, ignore_eos=True)))[0]) == 2


async def test_what_waits_is_counted_in_samples_before_it_is_taken(limited):
    two_each = SamplingParams(max_tokens=300, ignore_eos=True, n=2)
    stream = limited.submit([[3]], two_each)
    with pytest.raises(InvalidRequestError, match="try again later") as caught:
        limited.submit([[4]] * 2, two_each)  # there is room for two samples, and these are four
    assert caught.value.code == "queue_full"
    assert limited.num_unfinished_requests == 2
    second = limited.submit([[4]], two_each)
    await stream.aclose()
    await second.aclose()


async def test_more_samples_than_could_ever_wait_are_refused_for_good(limited):
    with pytest.raises(InvalidRequestError, match="at most 4") as caught:
        limited.submit([[3]] * 3, SamplingParams(n=2))
    assert (caught.value.param, caught.value.code) == ("n", "invalid_value")
    with pytest.raises(InvalidRequestError, match="at most 4") as caught:
        limited.submit([[3]] * 5, SamplingParams())
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError):
        limited.generate([3], SamplingParams(n=10**12))  # nothing is made for each of them first
    assert limited.num_unfinished_requests == 0


async def test_a_bad_request_never_reaches_the_engine_and_others_go_on(engine):
    with pytest.raises(InvalidRequestError):
        engine.generate([], SamplingParams())
    with pytest.raises(InvalidRequestError):
        engine.generate([3], SamplingParams(temperature=float("nan")))
    assert engine.num_unfinished_requests == 0
    assert len((await tokens_of(engine, [3], SamplingParams(max_tokens=4, ignore_eos=True)))[0]) == 4


@pytest.mark.timing
async def test_a_killed_engine_ends_every_stream_with_an_error_within_a_second(tiny_llama):
    async with running(tiny_llama) as engine:
        streams = [engine.generate([3] * 20, LONG) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        assert engine.pid is not None
        started = time.monotonic()
        os.kill(engine.pid, signal.SIGKILL)
        for stream in streams:
            outputs = [output async for output in stream]
            assert outputs[-1].finish_reason == "error"
            assert "SIGKILL" in (outputs[-1].error or "")
        assert time.monotonic() - started < 1.0
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            engine.check_health()
        with pytest.raises(EngineDeadError):
            engine.generate([3], LONG)


@pytest.mark.timing
async def test_a_stopped_process_is_ended_as_one_that_hangs(tiny_llama):
    async with running(tiny_llama, step_timeout=1.0) as engine:
        stream = engine.generate([3] * 20, LONG)
        await anext(stream)
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(4):
            outputs = [output async for output in stream]
        assert outputs[-1].finish_reason == "error"
        with pytest.raises(EngineDeadError, match="hangs: its process has said nothing"):
            engine.check_health()
        await until(lambda: not process_exists(pid) or pid not in child_processes())


@pytest.mark.timing
async def test_a_step_that_never_ends_counts_as_hung(tiny_llama):
    async with running(tiny_llama) as engine:
        stream = engine.generate([3] * 20, LONG)
        await anext(stream)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)  # no other pulses come
        engine._replicas._replicas[0].process._handle(Pulse(59.0, StepStats(*[0] * 7)))
        await asyncio.sleep(0.4)
        engine.check_health()
        engine._replicas._replicas[0].process._handle(Pulse(1000.0, StepStats(*[0] * 7)))
        outputs = [output async for output in stream]
        assert "no step has ended for 1000 s" in (outputs[-1].error or "")
        with pytest.raises(EngineDeadError, match="no step has ended for 1000 s"):
            engine.check_health()


async def test_once_its_steps_are_known_a_process_may_hang_for_ten_seconds_only(engine):
    await tokens_of(engine, [3] * 20, SamplingParams(max_tokens=STEPS_UNTIL_WARM + 20, ignore_eos=True))
    await until(lambda: engine._replicas._replicas[0].process._limit < COLD_SECONDS)
    assert engine._replicas._replicas[0].process._limit >= WARM_SECONDS


@pytest.mark.parametrize(
    ("chosen", "num_steps", "longest", "limit"),
    [(None, 99, 0.1, 60), (None, 100, 0.1, 10), (None, 100, 2.0, 40), (3.0, 0, 0.0, 3), (3.0, 500, 9.0, 3)],
)
async def test_how_long_a_step_may_take_follows_what_steps_took(chosen, num_steps, longest, limit):
    assert step_limit(chosen, num_steps, longest) == limit


@pytest.mark.timing
async def test_a_program_that_was_stopped_itself_takes_nobody_for_hung(tiny_llama):
    async with running(tiny_llama, step_timeout=1.0) as engine:
        time.sleep(1.5)  # the event loop hears nothing meanwhile
        await asyncio.sleep(0.5)
        engine.check_health()


def send_bytes(address: str, data: bytes) -> None:
    """Say something to one of the two processes that the other never would."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(address)
    socket.send(data)
    socket.close()
    context.term()


async def nonsense_ends(engine: AsyncEngine, address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    stream = engine.generate([3] * 20, LONG)
    await anext(stream)
    send_bytes(address, b"\x93 nonsense")
    async with asyncio.timeout(5):
        outputs = [output async for output in stream]
    assert outputs[-1].finish_reason == "error"
    assert "the engine died" in (outputs[-1].error or "")
    with pytest.raises(EngineDeadError):
        engine.generate([3], LONG)
    assert "the engine is dead" in caplog.text


async def test_a_message_that_cannot_be_read_ends_the_engine_loudly_until_it_is_started_anew(tiny_llama, caplog):
    few = SamplingParams(max_tokens=5, temperature=0.0)
    async with running(tiny_llama) as engine:
        before = await tokens_of(engine, [3] * 20, few)
        first, folder = engine.pid, engine.folder
        await nonsense_ends(engine, news_address(folder), caplog)
        starting = asyncio.create_task(engine.restart())
        await asyncio.sleep(0)
        with pytest.raises(EngineDeadError):
            engine.generate([3], LONG)
        await starting
        engine.check_health()
        assert engine.pid != first
        assert engine.num_restarts == 1
        assert not os.path.exists(folder)
        assert await tokens_of(engine, [3] * 20, few) == before
        await until(lambda: all_blocks_are_free(engine))
        await nonsense_ends(engine, request_address(engine.folder), caplog)


async def test_what_cannot_be_sent_is_refused_and_leaves_nothing_open(engine):
    params = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputParams(json={"const": 10**30}))
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        engine.generate([3], params)
    assert engine.num_unfinished_requests == 0


async def test_more_logprobs_than_may_be_kept_are_refused(limited):
    few = SamplingParams(max_tokens=10, logprobs=4, ignore_eos=True)
    with pytest.raises(InvalidRequestError, match="up to 150 log-probabilities") as caught:
        limited.submit([[3]] * 3, few)
    assert caught.value.param == "logprobs"
    with pytest.raises(InvalidRequestError, match="up to 150 log-probabilities"):
        limited.submit([[3]], SamplingParams(max_tokens=15, logprobs=4, n=2, temperature=1))
    with pytest.raises(InvalidRequestError, match="max_request_logprobs"):
        limited.generate([3] * 40, SamplingParams(max_tokens=1, prompt_logprobs=2))
    with pytest.raises(InvalidRequestError):
        limited.generate([3], SamplingParams(max_tokens=None, logprobs=0))  # up to the context
    assert len((await tokens_of(limited, [3], few))[0]) == 10


async def test_draining_lets_requests_finish_and_leaves_no_process_and_no_file(tiny_llama):
    engine = await AsyncEngine.start(EngineArgs(model=str(tiny_llama), **SMALL))
    pid, folder = engine.pid, engine.folder
    assert pid is not None
    assert os.stat(folder).st_mode & 0o777 == 0o700
    finished = asyncio.create_task(tokens_of(engine, [3] * 20, SamplingParams(max_tokens=100, ignore_eos=True)))
    await asyncio.sleep(0)
    await engine.shutdown(drain_timeout=20)
    assert len((await finished)[0]) == 100
    assert not process_exists(pid)
    assert not os.path.exists(folder)


async def test_shutting_down_at_once_aborts_what_runs(tiny_llama):
    engine = await AsyncEngine.start(EngineArgs(model=str(tiny_llama), **SMALL))
    stream = engine.generate([3] * 20, LONG)
    await anext(stream)
    await engine.shutdown()
    assert [output async for output in stream][-1].finish_reason == "abort"


async def test_a_start_that_fails_ends_with_its_cause_and_leaves_nothing(tiny_llama):
    before = child_processes()
    with pytest.raises(EngineStartError) as caught:
        async with running(tiny_llama, num_kv_blocks=4, max_model_len=512):
            pass
    last = str(caught.value).splitlines()[-1]
    assert "KV cache is too small for one request" in last
    assert child_processes() <= before


async def test_profiling_without_a_folder_says_what_to_set(engine):
    assert engine.info.profiler_dir is None
    with pytest.raises(ProfilerError, match="--torch-profiler-dir"):
        await engine.start_profile()


async def test_profiling_writes_a_trace_of_the_engines_process(limited):
    await limited.start_profile()
    await tokens_of(limited, [3, 4, 5], SamplingParams(max_tokens=3))
    await limited.stop_profile()
    assert len(list((Path(limited.info.profiler_dir) / "rank_0").glob("*.json.gz"))) == 1


async def test_many_streams_give_the_text_of_each_alone(engine):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [[3 + index, 4, 5 + index] for index in range(24)]
    alone = [await tokens_of(engine, prompt, params) for prompt in prompts]
    together = await asyncio.gather(*(tokens_of(engine, prompt, params) for prompt in prompts))
    assert together == alone


async def test_the_api_process_stays_free_of_torch_and_the_engine_dies_with_it(tiny_llama):
    script = f"""
        import asyncio, os, sys
        from atom_core import AsyncEngine, EngineArgs, SamplingParams
        async def main():
            engine = await AsyncEngine.start(EngineArgs(model={str(tiny_llama)!r}, dtype="float32", num_kv_blocks=64))
            async for output in engine.generate([3, 4], SamplingParams(max_tokens=2)):
                pass
            print(engine.pid, engine.folder, "torch" in sys.modules, flush=True)
            os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    pid, folder, has_torch = ran.stdout.split()
    assert has_torch == "False"
    await until(lambda: not process_exists(int(pid)), seconds=5)
    assert not os.path.exists(folder)


async def test_what_waits_is_counted_in_prompt_tokens_until_it_ends(limited):
    with pytest.raises(InvalidRequestError, match="max_num_queued_tokens = 50") as caught:
        limited.submit([[3] * 26] * 2, LONG)
    assert caught.value.code == "invalid_value"
    stream = limited.generate([3] * 30, LONG)
    with pytest.raises(InvalidRequestError) as caught:
        limited.generate([3] * 21, LONG)
    assert caught.value.code == "queue_full"
    await limited.generate([3] * 20, LONG).aclose()
    await stream.aclose()
    await limited.generate([3] * 50, LONG).aclose()


async def test_no_tenant_fills_the_queue(limited):
    greedy = [limited.generate([3], LONG, tenant="greedy") for _ in range(2)]
    with pytest.raises(InvalidRequestError, match="left to others"):
        limited.generate([3], LONG, tenant="greedy")
    modest = limited.generate([4], LONG, tenant="modest")
    for stream in (*greedy, modest):
        await stream.aclose()
    assert limited._open.load_of("greedy") == limited._open.load
