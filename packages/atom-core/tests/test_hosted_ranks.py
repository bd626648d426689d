"""Ranks that come to their engine over TCP, as from other nodes: their tokens are one rank's, and ends are told."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiet_rank
from atom_core.errors import EngineDeadError, EngineStartError
from atom_core.executor.launchers.connections import set_up
from atom_core.executor.launchers.handshake import Purpose
from atom_core.executor.launchers.hosted_rank import HostedRank
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.executor.processes.wire import Prepare
from atom_core.worker.ranks.meeting import Place
from child_processes import children_of
from hosted_ranks import LoopbackLauncher
from shared_ranks import SharedRanks, assert_ranks_change_no_token

QUIET = [sys.executable, quiet_rank.__file__]


def pids() -> list[int]:
    return children_of(os.getpid(), "quiet_rank")


@pytest.fixture
def quiet() -> Iterator[tuple[RankProcesses, LoopbackLauncher]]:
    launcher = LoopbackLauncher(QUIET)
    ranks = RankProcesses(2, device="cpu", num_threads=1, launcher=launcher)
    yield ranks, launcher
    ranks.close(grace=0.0)


def until_failed(ranks: RankProcesses) -> str:
    deadline = time.monotonic() + 20
    while ranks.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return ranks.failure.cause


def test_ranks_over_tcp_give_the_tokens_of_one(tiny_llama: Path):
    ranks = SharedRanks(LoopbackLauncher(), tensor_parallel_size=2)
    assert_ranks_change_no_token(tiny_llama, ranks)
    ranks.end()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_with_its_node_and_takes_the_others_along(rank: int, quiet):
    ranks, launcher = quiet
    os.kill(pids()[rank], signal.SIGKILL)
    assert "on 127.0.0.1 was ended by SIGKILL" in until_failed(ranks)
    launcher.close()
    assert pids() == []
    with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
        ranks.ask(Prepare())


def test_ranks_that_are_told_to_leave_say_so_and_nothing_of_them_is_left(quiet):
    ranks, launcher = quiet
    ranks.close()
    assert launcher.ends == {0: "ended with code 0", 1: "ended with code 0"}
    assert pids() == []


def test_ranks_end_with_their_engine_even_while_they_are_stopped(quiet):
    ranks, launcher = quiet
    os.kill(pids()[1], signal.SIGSTOP)
    ranks.close(grace=0.01)
    assert any(words.startswith("was ended by SIGKILL") for words in launcher.ends.values())
    assert pids() == []


def test_a_rank_that_cannot_be_started_ends_the_start_with_the_reason():
    launcher = LoopbackLauncher(["/no-such-program"])
    with pytest.raises(EngineStartError, match="rank . on 127.0.0.1 could not be started: .*no-such-program"):
        RankProcesses(2, device="cpu", num_threads=1, launcher=launcher)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "is lost: the process that started it is gone"),
        (ConnectionResetError(), "is lost: the process that started it is gone"),
        (TimeoutError(110, "Connection timed out"), r"is lost: its node does not answer (Connection timed out)"),
    ],
)
def test_a_host_that_is_gone_is_told_from_a_node_that_does_not_answer(error: OSError | None, words: str):
    class Line(socket.socket):
        def recv(self, *_: int) -> bytes:
            if error is not None:
                raise error
            return b""

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert HostedRank(Place("10.0.0.2", 0), ours, Line(fileno=os.dup(theirs.fileno()))).ended.result(5) == words


def test_a_lost_node_is_noticed_within_four_seconds():
    with socket.socket() as line:
        set_up(line, Purpose.LIFELINE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, between, count = (line.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + between * count <= 4
