"""Processes that torchrun started: the first has the engine, the others come to it and run its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import quiet_rank
from atom_core import settings
from atom_core.config import ConfigError, EngineArgs
from atom_core.errors import EngineStartError
from atom_core.executor.factory import make_launcher
from atom_core.executor.launchers import invitation
from atom_core.executor.launchers.invitation import (
    Invitation,
    Inviter,
    ask_for_invitation,
    invitation_of_environment,
)
from atom_core.executor.launchers.this_host import HostLauncher
from atom_core.executor.launchers.torchrun import TorchrunLauncher
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.settings import Torchrun
from child_processes import children_of

QUIET = [sys.executable, quiet_rank.__file__]
TOLD = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}


def make_process(rank: int = 0, size: int = 2, local_size: int = 2, host: str = "127.0.0.1") -> Torchrun:
    return Torchrun(rank, size, local_size, host, 20000 + os.getpid() % 20000)


@pytest.fixture
def of_torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_process_learns_its_number_from_torchrun(of_torchrun: pytest.MonkeyPatch):
    of_torchrun.setenv("MASTER_ADDR", "10.0.0.1")
    assert settings.torchrun() == Torchrun(1, 2, 2, "10.0.0.1", 29500)


@pytest.mark.parametrize("name", TOLD)
def test_a_process_that_lacks_a_variable_was_not_started_by_torchrun(name: str, of_torchrun: pytest.MonkeyPatch):
    of_torchrun.delenv(name)
    assert settings.torchrun() is None


def test_a_single_process_starts_its_ranks_by_itself(of_torchrun: pytest.MonkeyPatch):
    of_torchrun.setenv("WORLD_SIZE", "1")
    assert settings.torchrun() is None
    assert isinstance(make_launcher("mp"), HostLauncher)


def test_ranks_come_from_torchrun_where_it_started_several_processes(of_torchrun: pytest.MonkeyPatch):
    assert isinstance(make_launcher("mp"), TorchrunLauncher)


def test_an_engine_has_as_many_ranks_as_torchrun_started_processes(of_torchrun: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="torchrun started 2 processes, and .* has 3 ranks: give -tp 2"):
        EngineArgs(tensor_parallel_size=3)
    assert EngineArgs(pipeline_parallel_size=2).pipeline_parallel_size == 2


def test_processes_of_a_host_are_invited_by_the_first():
    process, given = make_process(1), Invitation("127.0.0.1", 7, b"secret")
    with closing(Inviter(process, given)):
        assert ask_for_invitation(process, 5.0) == given


def test_who_was_not_invited_says_for_what_it_waited():
    with pytest.raises(EngineStartError, match="rank 1 waited 0 s for the engine of rank 0"):
        ask_for_invitation(make_process(1), 0.05)


def test_processes_of_other_users_are_neither_invited_nor_believed(monkeypatch: pytest.MonkeyPatch):
    process = make_process(1)
    with closing(Inviter(process, Invitation("127.0.0.1", 7, b"secret"))):
        monkeypatch.setattr(invitation, "_is_ours", lambda end: False)
        with pytest.raises(EngineStartError):
            ask_for_invitation(process, 0.2)


def test_processes_of_several_hosts_need_a_secret(monkeypatch: pytest.MonkeyPatch):
    process = make_process(size=4, host="192.0.2.1")
    monkeypatch.delenv("ATOM_RANKS_SECRET", raising=False)
    with pytest.raises(ConfigError, match="ATOM_RANKS_SECRET has no 32 characters"):
        invitation_of_environment(process)
    monkeypatch.setenv("ATOM_RANKS_SECRET", "x" * 31)
    with pytest.raises(ConfigError, match="ATOM_RANKS_SECRET has no 32 characters"):
        invitation_of_environment(process)
    monkeypatch.setenv("ATOM_RANKS_SECRET", "x" * 32)
    assert invitation_of_environment(process) == Invitation("192.0.2.1", process.port + 1, b"x" * 32)


def test_an_address_that_other_hosts_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATOM_RANKS_SECRET", "x" * 32)
    with pytest.raises(ConfigError, match="MASTER_ADDR is 127.0.0.1, which no other node reaches"):
        invitation_of_environment(make_process(size=4))


def start_other(process: Torchrun, **environment: str) -> subprocess.Popen[bytes]:
    """The process of another rank, as torchrun starts it."""
    code = (
        "import sys; from atom_core.config import EngineArgs; from atom_core.settings import Torchrun; "
        "from atom_core.executor.launchers.torchrun import run_torchrun_rank; "
        f"sys.exit(run_torchrun_rank(Torchrun(*{(*process,)!r}), EngineArgs(num_threads=1), {QUIET!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environment})


def ranks_with(process: Torchrun) -> RankProcesses:
    return RankProcesses(2, device="cpu", num_threads=1, launcher=TorchrunLauncher(process, QUIET))


def test_the_other_processes_end_with_the_engine():
    other = start_other(make_process(1))
    ranks = ranks_with(make_process())
    other.send_signal(15)  # torchrun passes it on to all, and the front ends the ranks
    ranks.close()
    assert other.wait(20) == 0


def test_a_rank_of_another_process_that_dies_is_named_and_ends_the_others():
    with start_other(make_process(1)) as other:
        ranks = ranks_with(make_process())
        [pid] = children_of(other.pid, "quiet_rank")
        os.kill(pid, 9)
        assert other.wait(20) == 1
        [mine] = ranks.pids
        deadline = time.monotonic() + 20
        while ranks.failure is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ranks.close()
        assert "rank 1 on 127.0.0.1 was ended by SIGKILL" in str(ranks.failure)
        assert not Path(f"/proc/{mine}/cmdline").exists()


@pytest.mark.slow
def test_a_program_under_torchrun_has_the_tokens_of_one_rank(tiny_llama: Path, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\n"
        "from atom_core import LLMEngine, SamplingParams\n"
        "sizes = {'tensor_parallel_size': int(sys.argv[2])}\n"
        "with LLMEngine(sys.argv[1], dtype='float32', num_kv_blocks=64, num_threads=1, seed=0, **sizes) as engine:\n"
        "    params = SamplingParams(temperature=0.9, seed=7, max_tokens=12, ignore_eos=True)\n"
        "    print(json.dumps([out['token_ids'] for out in engine.generate([[3, 4, 5], [9] * 30], params, False)]))\n"
    )
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = []
    for start, size in (([sys.executable], "1"), (run, "2")):
        command = [*start, str(program), str(tiny_llama), size]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
