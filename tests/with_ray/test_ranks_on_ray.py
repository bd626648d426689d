"""Ranks that Ray places on two hosts: their tokens are one rank's, and what is lost is named and ends the engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.with_ray.hosts import TOKEN, Cluster, Host, is_able, ray_nodes, two_hosts

pytestmark = [pytest.mark.ray, pytest.mark.skipif(not is_able(), reason="network namespaces need root and ip")]

RAY = ["--distributed-executor-backend", "ray"]
SMALL = ["--dtype", "float32", "--num-kv-blocks", "256", "--max-num-seqs", "8", "--num-threads", "1", "--seed", "0"]
IN_TIME = 5.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def nodes(hosts: tuple[Host, Host]) -> Iterator[Cluster]:
    with ray_nodes(hosts) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> str:
    """The address of a cluster whose nodes are all there."""
    nodes.revive()
    return nodes.address


def tokens_on(host: Host | None, model: Path, address: str | None = None, **settings: object) -> list[list[int]]:
    command = [sys.executable, "-m", "tests.with_ray.generate", str(model), json.dumps(settings)]
    environment = {**os.environ, **TOKEN, **({"RAY_ADDRESS": address} if address else {})}
    line = command if host is None else host.command(*command)
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_ranks_on_two_hosts_give_the_tokens_of_one_and_nothing_of_them_is_left(hosts, cluster: str, tiny_llama: Path):
    found = tokens_on(hosts[0], tiny_llama, cluster, tensor_parallel_size=2, distributed_executor_backend="ray")
    assert found == tokens_on(None, tiny_llama)
    assert ranks_of(hosts) == []


def ranks_of(hosts) -> list[int]:
    """The processes of ranks, on all hosts."""
    return [pid for host in hosts for pid in host.pids() if b"processes.worker" in words_of(pid)]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Server:
    """``atom serve -tp 2`` over Ray, on a host of its own."""

    def __init__(self, host: Host, model: Path, address: str, log: Path) -> None:
        self.host, self.log = host, log
        serve = ["serve", "--model", str(model), "--served-model-name", "tiny", "--server-port", "8000", *SMALL, *RAY]
        with log.open("wb") as file:
            self.process = host.start(
                *[sys.executable, "-m", "atom_server", *serve, "-tp", "2"],
                env={"RAY_ADDRESS": address},
                stdout=file,
                stderr=file,
            )
        deadline = time.monotonic() + 90
        while self.curl("/health", "-o", "/dev/null", "-w", "%{http_code}") != "200":
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def curl(self, path: str, *words: str) -> str:
        line = self.host.command(
            "curl", "-s", "--noproxy", "*", "--max-time", "30", *words, f"http://127.0.0.1:8000{path}"
        )
        return subprocess.run(line, capture_output=True, text=True).stdout

    def stream(self) -> subprocess.Popen[str]:
        """An answer of many tokens, of which the first has come."""
        body = {"model": "tiny", "prompt": [3] * 20, "max_tokens": 480, "ignore_eos": True, "stream": True}
        line = ["curl", "-sN", "--noproxy", "*", "-H", "content-type: application/json", "-d", json.dumps(body)]
        process = self.host.start(*line, "http://127.0.0.1:8000/v1/completions", stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("data:")
        return process

    @property
    def last_line(self) -> str:
        return self.log.read_text().splitlines()[-1]


@pytest.fixture
def server(hosts: tuple[Host, Host], cluster: str, tiny_llama: Path, tmp_path: Path) -> Iterator[Server]:
    made = Server(hosts[0], tiny_llama, cluster, tmp_path / "log.txt")
    yield made
    made.process.kill()
    made.process.wait()


def kill_rank(host: Host) -> None:
    os.kill(next(pid for pid in host.pids() if b"processes.worker" in words_of(pid)), signal.SIGKILL)


def kill_actor(host: Host) -> None:
    os.kill(next(pid for pid in host.pids() if b"ray::RankHost" in words_of(pid)), signal.SIGKILL)


def cut_the_wire(host: Host) -> None:
    subprocess.run(["ip", "-n", host.name, "link", "set", "wire", "down"], check=True)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (kill_rank, r"rank 1 on 10.77.0.2 was ended by SIGKILL"),
        (kill_actor, r"rank 1 on 10.77.0.2 is lost: the process that started it is gone"),
        (Host.kill, r"rank 1 on 10.77.0.2 is lost: the process that started it is gone"),
        (cut_the_wire, r"rank 1 on 10.77.0.2 is lost: its node does not answer"),
    ],
)
def test_what_is_lost_is_named_with_its_node_and_ends_the_engine_in_time(harm, says: str, server: Server, hosts):
    stream = server.stream()
    started = time.monotonic()
    harm(hosts[1])
    told, _ = stream.communicate(timeout=20)
    assert time.monotonic() - started < IN_TIME
    assert "error" in told.splitlines()[-1] or "error" in told
    assert server.process.wait(20) != 0
    assert re.search(says, server.last_line), server.log.read_text()
    deadline = time.monotonic() + 10
    while pids := ranks_of(hosts):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)
