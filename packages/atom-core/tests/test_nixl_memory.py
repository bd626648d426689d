"""Pages that are read by NIXL out of another process, which is stopped and killed; where NIXL is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atom_core.config import ConfigError
from atom_core.worker.transfer import nixl_memory
from atom_core.worker.transfer.nixl_memory import MAX_LOST, NixlMemory
from atom_core.worker.transfer.wire import NixlPages, TransferError
from engines_apart import free_port
from meddling_proxy import MeddlingProxy
from transferring_workers import WAYS, Worker, make_config

SENDER = """
import sys
from transferring_workers import WAYS, Worker, make_config
sender = Worker(make_config("kv_producer", {port}, **WAYS["nixl"]), first=100.0)
while True:
    print("ready", flush=True)
    sys.stdin.readline()
    sender.keep([3, 4, 5, 6, 7])
"""


def test_without_the_library_the_start_ends_in_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nixl_memory, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs nixl, which is not installed: pip install 'nixl"):
        Worker(make_config("kv_consumer", 1, **WAYS["nixl"]))


@pytest.fixture
def over_tcp(monkeypatch: pytest.MonkeyPatch):
    """UCX as between two hosts: on one it copies without the other process."""
    pytest.importorskip("nixl")
    monkeypatch.setenv("UCX_TLS", "tcp")


class Sender:
    """A process that keeps a prompt of five blocks whenever it is asked to."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-c", SENDER.format(port=self.port)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        pipe: Any = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self._wait()

    def keep(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        while self.process.stdout.readline() not in ("ready\n", ""):
            pass


@pytest.fixture
def sender(over_tcp: None) -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.process.kill()
    sender.process.communicate()


@pytest.fixture
def fetcher(over_tcp: None) -> Iterator[Worker]:
    worker = Worker(make_config("kv_consumer", 1, timeout=1.0, **WAYS["nixl"]))
    yield worker
    worker.connector.close()


EVERYTHING = dict(enumerate(range(5)))


def test_pages_do_not_go_through_the_socket(sender: Sender, fetcher: Worker):
    said = bytearray()

    def look(data: bytearray, before: int) -> bool:
        said.extend(data)
        return True

    sender.keep()
    with MeddlingProxy(sender.port, look) as proxy:
        assert fetcher.fetch(proxy.port, EVERYTHING) == 5
    assert fetcher.values(*range(5)) == [103, 104, 105, 106, 107]
    assert fetcher.places.page(0).nbytes == 28
    assert np.full(7, 105, np.float32).tobytes() not in said


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_peer_that_stops_is_left_and_what_comes_late_harms_nothing(
    sender: Sender, fetcher: Worker, number: signal.Signals
):
    def stop(data: bytearray, before: int) -> bool:
        if before:  # the pages may be read now
            os.kill(sender.process.pid, number)
        return True

    sender.keep()
    with MeddlingProxy(sender.port, stop) as proxy:
        assert fetcher.fetch(proxy.port, EVERYTHING) == 0
    if number == signal.SIGSTOP:
        sender.process.send_signal(signal.SIGCONT)
        sender.keep()
        assert fetcher.fetch(sender.port, EVERYTHING) == 5
        assert fetcher.values(*range(5)) == [103, 104, 105, 106, 107]


def test_memory_of_reads_without_an_end_is_kept_up_to_a_bound(over_tcp: None):
    memory = NixlMemory(np.zeros((0, 28), np.uint8), 1.0)
    for _ in range(MAX_LOST):
        window = memory.make((2, 28), b"")
        assert window.offer is not None
        window._is_lost = True  # pyright: ignore[reportAttributeAccessIssue]
        window.close()
    assert memory.make((2, 28), b"").offer is None


@pytest.mark.parametrize(
    ("there", "words"),
    [(NixlPages(b"x", [0]), "1 addresses came, and 2 are expected"), (NixlPages(b"x", [0, 1]), "NIXL cannot read")],
)
def test_what_says_nothing_is_refused(over_tcp: None, there: NixlPages, words: str):
    window = NixlMemory(np.zeros((0, 28), np.uint8), 1.0).make((2, 28), b"")
    with pytest.raises(TransferError, match=words):
        window.take(window.pages, there)
    window.close()
