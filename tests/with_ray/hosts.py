"""Two network namespaces as two hosts with a cable between them, and a Ray node on each."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PORT = 6389
# What a Ray node takes here: as little as it starts with.
NODE = ["--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", "80000000", "--disable-usage-stats", "--block"]


# What every program needs that has to do with the cluster.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@dataclass
class Host:
    """A namespace, and what was started in it."""

    name: str
    address: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **TOKEN, **options.pop("env", {})}
        process = subprocess.Popen(self.command(*words), start_new_session=True, env=environment, **options)
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        """All that runs in the namespace."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """End all that runs in it, at once, as where the node loses its power."""
        deadline = time.monotonic() + 10
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self.started:
            process.wait(10)


def is_able() -> bool:
    """Whether this user may make namespaces here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Hosts that reach each other and nothing else; all that runs on them ends with this."""
    tag = f"atom{os.getpid() % 10000}"
    hosts = Host(f"{tag}a", "10.77.0.1"), Host(f"{tag}b", "10.77.0.2")
    made: list[Host] = []
    try:
        for host in hosts:
            ip("netns", "add", host.name)
            made.append(host)
        ip(
            "link",
            "add",
            "wire",
            "netns",
            hosts[0].name,
            "type",
            "veth",
            "peer",
            "name",
            "wire",
            "netns",
            hosts[1].name,
        )
        for host in hosts:
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "wire")
            for link in ("lo", "wire"):
                ip("-n", host.name, "link", "set", link, "up")
        yield hosts
    finally:
        for host in made:
            host.kill()
            ip("netns", "delete", host.name)


class Cluster:
    """A Ray node on each of some hosts, with room for one rank.

    Attributes:
        address: where programs find it.
    """

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.address = f"{hosts[0].address}:{PORT}"
        self._hosts, self._log = hosts, folder / "nodes.txt"
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self._start(hosts[0], *head)
        self._wait(0)
        self.revive()

    def revive(self) -> None:
        """Start a node on each host that has none."""
        without = [host for host in self._hosts[1:] if not host.pids()]
        if without:
            self._wait(len(self._hosts) - len(without))  # Ray may take a node that is gone for one that is there
        for host in without:
            self._start(host, f"--address={self.address}")
        self._wait(len(self._hosts))

    def _start(self, host: Host, *words: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *NODE, f"--node-ip-address={host.address}"]
        with self._log.open("ab") as log:
            host.start(*command, *words, stdout=log, stderr=log)

    def _wait(self, num_nodes: int) -> None:
        """Until so many nodes are there; with 0, until the cluster can be joined."""
        line = self._hosts[0].command(sys.executable, "-c", PROBE, self.address, str(num_nodes))
        subprocess.run(line, env={**os.environ, **TOKEN}, check=True, timeout=200)


@contextmanager
def ray_nodes(hosts: Sequence[Host]) -> Iterator[Cluster]:
    """A cluster that ends with this."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            yield Cluster(hosts, Path(folder))
        finally:
            for host in hosts:
                host.kill()


# Asks until so many nodes are there.
PROBE = """
import socket, sys, time
address, count = sys.argv[1], int(sys.argv[2])
host, _, port = address.rpartition(":")
deadline = time.monotonic() + 150
while time.monotonic() < deadline:
    try:
        if not count:
            sys.exit(socket.create_connection((host, int(port))).close())
        import ray
        ray.init(address, logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True)
        if sum(node["Alive"] for node in ray.nodes()) == count:
            sys.exit()
    except OSError:
        pass
    time.sleep(0.5)
sys.exit("the nodes did not come up")
"""
