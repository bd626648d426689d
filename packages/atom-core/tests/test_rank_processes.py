"""Ranks as processes: the first one that ends is named and takes the others along, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import quiet_rank
from atom_core.config.sections import (
    CacheConfig,
    CompileConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    ProfilerConfig,
)
from atom_core.engine.engine_core import EngineCore
from atom_core.errors import EngineDeadError, EngineStartError, ProfilerError
from atom_core.executor.launchers.this_host import HostLauncher
from atom_core.executor.processes import rank_loop, rank_processes
from atom_core.executor.processes.executor import ProcessExecutor, ProcessStepHandle
from atom_core.executor.processes.rank_link import RankLink
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.executor.processes.wire import Load, Loaded, Prepare, decode_from_rank, decode_to_rank, encode
from atom_core.messages import EngineRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.scheduler import SchedulerConfig
from atom_core.worker.runner import RunnerInfo
from atom_kernels.protocols import CacheFormat, Pages, Slots
from hosted_ranks import LoopbackLauncher

QUIET = [sys.executable, quiet_rank.__file__]
STEP = SchedulerOutput(1, [ScheduledRequest("r", 0, 1, [[0]], 1)], [], [])

StartRanks = Callable[..., RankProcesses]


@pytest.fixture
def start_ranks() -> Iterator[StartRanks]:
    started: list[RankProcesses] = []

    def start() -> RankProcesses:
        started.append(RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher(QUIET)))
        return started[-1]

    yield start
    for ranks in started:
        ranks.close(grace=0.0)


@pytest.fixture(scope="module")
def sound() -> Iterator[RankProcesses]:
    """Ranks for the tests that leave them as they found them."""
    ranks = RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher(QUIET))
    yield ranks
    ranks.close(grace=0.0)


def make_config(name: str = "sound", num_ranks: int = 2) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(name, Path("."), "none", "float32", 256, True, 16, ()),
        cache=CacheConfig(16, CacheFormat("float32"), False, "xxhash64", 0.9, num_blocks=32),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256, max_model_len=256),
        parallel=ParallelConfig(1, num_ranks),
        compile=CompileConfig(),
        profiler=ProfilerConfig(),
        device="cpu",
    )


def executor_on(ranks: RankProcesses, config: EngineConfig) -> ProcessExecutor:
    return ProcessExecutor(config, lambda *_, **__: ranks)


def request(prompt_tokens: int = 4) -> EngineRequest:
    return EngineRequest("r", [3] * prompt_tokens, SamplingParams(max_tokens=2, seed=1, prompt_logprobs=0))


def run(core: EngineCore) -> list[int]:
    tokens = []
    while core.has_unfinished():
        for output in core.step():
            assert output.error is None
            tokens += output.new_token_ids
    return tokens


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_rank_answers_for_all(sound: RankProcesses):
    core = EngineCore(make_config(), executor_on(sound, make_config()))
    core.add_request(request())
    assert run(core) == [5, 5]


def test_a_rank_is_stopped_until_it_is_told_to_go_on(sound: RankProcesses):
    assert sound.stopped == ()
    os.kill(sound.pids[1], signal.SIGSTOP)
    until(lambda: sound.stopped == (1,))
    os.kill(sound.pids[1], signal.SIGCONT)
    until(lambda: sound.stopped == ())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_takes_the_others_along(rank: int, start_ranks: StartRanks):
    ranks = start_ranks()
    pids = ranks.pids
    os.kill(pids[rank], signal.SIGKILL)
    until(lambda: ranks.failure is not None)
    assert f"rank {rank} was ended by SIGKILL" in str(ranks.failure)
    until(lambda: not any(map(is_there, pids)))
    with pytest.raises(EngineDeadError, match=f"rank {rank} was ended by SIGKILL"):
        ranks.ask(Prepare())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_while_it_loads_ends_the_start(rank: int, start_ranks: StartRanks):
    ranks = start_ranks()
    executor = executor_on(ranks, make_config("load all hangs"))
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(executor.start)
        os.kill(ranks.pids[rank], signal.SIGKILL)
        with pytest.raises(EngineStartError, match=f"rank {rank} was ended by SIGKILL"):
            starting.result(20)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_step_ends_the_engine_at_once(rank: int, start_ranks: StartRanks):
    ranks = start_ranks()
    config = make_config("sample all hangs")
    core = EngineCore(config, executor_on(ranks, config))
    core.add_request(request())
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, core)
        os.kill(ranks.pids[rank], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=f"rank {rank} was ended by SIGKILL"):
            running.result(20)
    assert core.failure is not None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_raises_in_one_rank_ends_all(rank: int, start_ranks: StartRanks):
    ranks = start_ranks()
    executor = executor_on(ranks, make_config(f"forward {rank} raises"))
    executor.start()
    handle = executor.submit(STEP)
    handle.sample()
    if rank:  # rank 0 has its result already
        until(lambda: ranks.failure is not None)
    else:
        with pytest.raises(EngineDeadError, match="rank 0: RuntimeError: the device is on fire"):
            handle.result()
    assert f"rank {rank}: RuntimeError: the device is on fire" in str(ranks.failure)
    until(lambda: not any(map(is_there, ranks.pids)))


def test_what_a_rank_refuses_keeps_its_kind(start_ranks: StartRanks):
    with pytest.raises(EngineStartError, match="rank 1: max_model_len is too long") as raised:
        executor_on(start_ranks(), make_config("load 1 refuses")).start()
    assert raised.value.failure.kind == "settings"


def test_a_rank_that_lost_another_one_is_not_the_cause(start_ranks: StartRanks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_processes, "GATHER_SECONDS", 2.0)
    with pytest.raises(EngineStartError, match="rank 1: RuntimeError: the device is on fire"):
        executor_on(start_ranks(), make_config("load all is lost")).start()


def test_the_end_of_a_rank_on_another_node_is_waited_for_though_others_tell_of_it_first(monkeypatch):
    monkeypatch.setattr(rank_processes, "GATHER_SECONDS", 0.0)
    ranks = RankProcesses(2, device="cpu", num_threads=1, launcher=LoopbackLauncher(QUIET))
    with pytest.raises(EngineStartError, match="rank 1 on 127.0.0.1: RuntimeError: the device is on fire"):
        executor_on(ranks, make_config("load all is lost")).start()
    ranks.close()


def test_ranks_with_caches_of_different_sizes_are_refused(sound: RankProcesses):
    with pytest.raises(EngineStartError, match="rank 1 has another KV cache than rank 0"):
        executor_on(sound, make_config("uneven")).start()


def test_messages_longer_than_a_socket_holds_pass_each_other(sound: RankProcesses):
    executor = executor_on(sound, make_config("longer"))
    executor.start()
    long = SchedulerOutput(1, [ScheduledRequest("r", 0, 1, [list(range(1 << 20))], 1)], [], [])
    handles = []
    for _ in range(3):
        handles.append(executor.submit(long))
        handles[-1].sample()
    assert [len(handle.result().requests[0].prompt_logprobs) for handle in handles] == [20000] * 3


def test_all_that_a_runner_tells_crosses_processes():
    assert Loaded.__struct_fields__ == RunnerInfo.__struct_fields__
    choices, groups = ["dtype = float32: it was asked for"], (Pages(), Pages(16), Slots(3))
    info = RunnerInfo(7, 64, groups, {"load weights": 0.5}, choices, num_slots=6, num_snapshots=2, launches=True)
    received = decode_from_rank(encode(Loaded.of(info)))
    assert isinstance(received, Loaded)
    assert received.info == info


def test_a_configuration_crosses_processes():
    config = make_config()
    received = decode_to_rank(encode(Load(config)))
    assert isinstance(received, Load)
    assert received.config == config


def test_answers_come_in_the_order_of_what_was_asked_though_results_are_late(sound: RankProcesses):
    executor = executor_on(sound, make_config("late"))
    executor.start()
    handle = executor.submit(STEP)
    handle.sample()
    executor.profile(start=True)
    assert handle.result().requests[0].token_ids == [5]


def test_ranks_sleep_as_deeply_as_they_are_told_and_wake_up(sound: RankProcesses):
    executor = executor_on(sound, make_config())
    executor.start()

    def sampled() -> list[int]:
        handle = executor.submit(STEP)
        handle.sample()
        return handle.result().requests[0].token_ids

    executor.sleep(2)
    assert sampled() == [3]
    executor.wake_up()
    assert sampled() == [5]


def test_what_ranks_cannot_record_is_told(sound: RankProcesses):
    executor = executor_on(sound, make_config("records nothing"))
    executor.start()
    with pytest.raises(ProfilerError, match="there is nothing to record"):
        executor.profile(start=True)


def test_an_executor_that_was_not_started_says_so():
    executor = ProcessExecutor(make_config())
    executor.shutdown()
    with pytest.raises(RuntimeError, match="was not started"):
        executor.submit(STEP)


def test_a_step_that_was_never_told_to_sample_has_no_result(sound: RankProcesses):
    with pytest.raises(RuntimeError, match="before sample"):
        ProcessStepHandle(sound).result()


def test_a_rank_tells_while_it_prepares(sound: RankProcesses):
    executor = executor_on(sound, make_config("prepares"))
    executor.start()
    with ThreadPoolExecutor(1) as thread:
        preparing = thread.submit(executor.prepare)
        until(lambda: executor.is_preparing)
        assert preparing.result(20) is False
    until(lambda: not executor.is_preparing)


def test_closed_ranks_leave_nothing(start_ranks: StartRanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    ranks = start_ranks()
    pids = ranks.pids
    executor_on(ranks, make_config()).start()
    ranks.close()
    assert not any(map(is_there, pids))
    until(lambda: threading.active_count() <= threads)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not list(tmp_path.iterdir())
    with pytest.raises(EngineDeadError, match="closed"):
        ranks.ask(Prepare())


def test_ranks_that_hang_are_waited_for_once_and_then_killed(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []

    class Watched(RankLink):
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return super().wait(seconds)

    monkeypatch.setattr(rank_processes, "RankLink", Watched)
    ranks = RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher(QUIET))
    for pid in ranks.pids:
        os.kill(pid, signal.SIGSTOP)
    ranks.close(grace=0.01)
    assert waits == [0.01, rank_processes.LEAVE_SECONDS, rank_processes.LEAVE_SECONDS]
    assert not any(map(is_there, ranks.pids))


def test_ranks_end_with_the_process_that_started_them_even_while_they_are_stopped():
    script = f"""
        import sys, time
        from atom_core.executor.launchers.this_host import HostLauncher
        from atom_core.executor.processes.rank_processes import RankProcesses
        ranks = RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher({QUIET!r}))
        print(*ranks.pids, flush=True)
        time.sleep(1000)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not any(map(is_there, pids)))


def test_ranks_do_not_end_with_the_thread_that_asked_for_them(start_ranks: StartRanks):
    with ThreadPoolExecutor(1) as thread:
        ranks = thread.submit(start_ranks).result()
    assert len(ranks.ask(Load(make_config()))) == 2
    assert ranks.failure is None


def test_a_command_that_cannot_be_started_is_told():
    with pytest.raises(OSError, match="no-such-program"):
        RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher(["/no-such-program"]))


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("raise SystemExit(3)", "ended with code 3"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40"),
    ],
)
def test_a_process_that_says_nothing_is_told_by_how_it_ended(script: str, end: str):
    with pytest.raises(EngineStartError, match=f"rank . {end}"):
        RankProcesses(2, device="cpu", num_threads=1, launcher=HostLauncher([sys.executable, "-c", script]))


@pytest.mark.parametrize(("device", "level", "looks"), [("cpu", 0, False), ("cpu", 1, True), ("cuda", 0, True)])
def test_a_rank_looks_for_what_it_let_go_where_a_model_may_be_in_circles(
    device: str, level: int, looks: bool, monkeypatch: pytest.MonkeyPatch
):
    called: list[str] = []
    names = ("unfreeze", "collect", "freeze")
    monkeypatch.setattr(rank_loop, "gc", SimpleNamespace(**{name: partial(called.append, name) for name in names}))
    info = RunnerInfo(7, 64, (Pages(),), {}, [])
    runner = SimpleNamespace(load=lambda: info, close=lambda: called.append("close"))
    rank = rank_loop._Rank(None, None, lambda *_: runner)  # type: ignore[arg-type]
    rank._load(replace(make_config(), device=device, compile=CompileConfig(level)))
    rank._load(make_config())
    assert called == ["freeze", "close", *(["unfreeze", "collect"] if looks else []), "freeze"]
