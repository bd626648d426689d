"""Pages over a connection between two workers: what arrives is right, and nothing that goes wrong lasts long."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from atom_core.config import ConfigError
from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.messages import BlockCopy, PeerPrompt, Transfer
from atom_core.worker.offload.host_bytes import HostBytes
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.transfer import wire
from atom_core.worker.transfer.kept_prompts import KeptPrompts
from atom_core.worker.transfer.tcp_connector import TcpConnector
from atom_core.worker.transfer.wire import TransferError
from clock import Clock
from engines_apart import free_port
from meddling_proxy import MeddlingProxy

NUM_BLOCKS = 12
LAYOUT = {"architecture": "Llama", "block_size": "16"}
PROMPT = PeerPrompt("engine", "key", b"digest")


class Worker:
    """The cache of a worker, `NUM_BLOCKS` blocks of two tensors, and its connector."""

    def __init__(self, config: KVTransferConfig, layout: dict[str, str] = LAYOUT, *, first: float = 0.0) -> None:
        self.cache = [torch.full((NUM_BLOCKS, 3), first), torch.full((NUM_BLOCKS, 2, 2), first)]
        for tensor in self.cache:
            tensor += torch.arange(NUM_BLOCKS).view(-1, *[1] * (tensor.dim() - 1))
        self.places = HostPlaces(HostBytes(self.cache, NUM_BLOCKS))
        self.connector = TcpConnector(config, 0, self.places, layout)

    def keep(self, block_ids: list[int], prompt: PeerPrompt = PROMPT) -> Any:
        """Blocks as a prompt that a peer is to fetch; when it has ended, how many were fetched."""
        self.places.save([BlockCopy(block_id, place) for place, block_id in enumerate(block_ids)])
        copies = tuple(BlockCopy(place, place) for place in range(len(block_ids)))
        return self.connector.begin(Transfer(1, "send", copies, prompt))

    def fetch(self, port: int, copies: dict[int, int], prompt: PeerPrompt = PROMPT) -> int:
        """Positions of a prompt into blocks; how many came."""
        moves = tuple(BlockCopy(source, target) for source, target in copies.items())
        transfer = Transfer(1, "fetch", moves, replace(prompt, host="127.0.0.1", port=port))
        return self.connector.begin(transfer).result(20)

    def values(self, *block_ids: int) -> list[float]:
        """What blocks hold, the same in all of their numbers."""
        rows = [torch.cat([tensor[block_id].flatten() for tensor in self.cache]) for block_id in block_ids]
        assert all(bool((row == row[0]).all()) for row in rows)
        return [float(row[0]) for row in rows]


def make_config(role: str, port: int, **overrides: Any) -> KVTransferConfig:
    values = {"kv_connector": "TcpConnector", "engine_id": "engine", "buffer_bytes": 1, "timeout": 20.0}
    return KVTransferConfig(**values | {"kv_role": role, "kv_ip": "127.0.0.1", "kv_port": port} | overrides)


Pair = tuple[Worker, Worker, int]


@contextmanager
def pair(
    *, of_sender: dict[str, Any] | None = None, layout: dict[str, str] = LAYOUT, **of_fetcher: Any
) -> Iterator[Pair]:
    port = free_port()
    sender = Worker(make_config("kv_producer", port, **of_sender or {}), first=100.0)
    fetcher = Worker(make_config("kv_consumer", port, **of_fetcher), layout)
    try:
        yield sender, fetcher, port
    finally:
        for worker in (fetcher, sender):
            worker.connector.close()


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch):
    """Two pages of 28 bytes a frame."""
    monkeypatch.setattr(wire, "FRAME_BYTES", 60)


def test_pages_get_where_they_are_asked_for():
    with pair() as (sender, fetcher, port):
        ended = sender.keep([3, 4, 5, 6, 7])
        assert fetcher.fetch(port, {0: 9, 2: 1, 3: 2, 4: 8}) == 4
        assert fetcher.values(9, 1, 2, 8, 0, 3) == [103, 105, 106, 107, 0, 3]
        assert ended.result(5) == 5


def test_who_needs_nothing_lets_the_prompt_go():
    with pair() as (sender, fetcher, port):
        ended = sender.keep([3, 4])
        assert fetcher.fetch(port, {}) == 0
        assert ended.result(5) == 2


def test_a_prompt_is_given_out_once(caplog: pytest.LogCaptureFixture):
    with pair() as (sender, fetcher, port):
        sender.keep([3, 4])
        assert fetcher.fetch(port, {0: 1}) == 1
        assert fetcher.fetch(port, {1: 2}) == 0
        assert fetcher.values(2) == [2]
    assert "not kept any more" in caplog.text


def test_who_comes_before_the_step_that_keeps_the_prompt_waits_for_it():
    with pair() as (sender, fetcher, port):
        later = threading.Timer(0.2, lambda: sender.keep([3]))
        later.start()
        assert fetcher.fetch(port, {0: 1}) == 1
        later.join()


def flip(number: int) -> Callable[[bytearray, int], bool]:
    """Change the byte that is the `number`th of the answer."""

    def meddle(data: bytearray, before: int) -> bool:
        if before <= number < before + len(data):
            data[number - before] ^= 1
        return True

    return meddle


def length_of_answer() -> int:
    """Bytes that the sender says for a prompt of five blocks."""
    count = 0

    def meddle(data: bytearray, before: int) -> bool:
        nonlocal count
        count = before + len(data)
        return True

    with pair() as (sender, fetcher, port), MeddlingProxy(port, meddle) as proxy:
        sender.keep([3, 4, 5, 6, 7])
        assert fetcher.fetch(proxy.port, dict(enumerate(range(5)))) == 5
    return count


def test_a_byte_that_was_changed_anywhere_is_found_out():
    num_bytes = length_of_answer()
    with pair(timeout=0.3, of_sender={"timeout": 0.3}) as (sender, fetcher, port):
        for number in range(0, num_bytes, 7):
            with MeddlingProxy(port, flip(number)) as proxy:
                sender.keep([3, 4, 5, 6, 7], replace(PROMPT, key=str(number)))
                num_done = fetcher.fetch(proxy.port, dict(enumerate(range(5))), replace(PROMPT, key=str(number)))
            assert fetcher.values(*range(num_done)) == [103.0 + place for place in range(num_done)]
            # Nothing but the numbers that both sides draw says nothing: without a secret they prove nothing.
            assert num_done < 5 or number < 60


@pytest.mark.parametrize("where", [0, 1, 50, -40, -1])
def test_a_connection_that_is_cut_anywhere_ends_the_transfer(where: int):
    number = where if where >= 0 else length_of_answer() + where

    def cut(data: bytearray, before: int) -> bool:
        del data[max(number - before, 0) :]
        return bool(data)

    with pair(timeout=1.0, of_sender={"timeout": 1.0}) as (sender, fetcher, port), MeddlingProxy(port, cut) as proxy:
        ended = sender.keep([3, 4, 5, 6, 7])
        begun = time.monotonic()
        assert fetcher.fetch(proxy.port, dict(enumerate(range(5)))) < 5
        assert time.monotonic() - begun < 5
        if where < 0:
            assert ended.result(5) == 0


def test_a_peer_that_says_nothing_is_left_after_the_timeout(caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as silent, pair(timeout=0.2) as (_, fetcher, _):
        assert fetcher.fetch(silent.getsockname()[1], {0: 1}) == 0
    assert "is computed here: timed out" in caplog.text


def test_a_peer_that_says_one_byte_at_a_time_does_not_hold_anybody_up():
    with socket.create_server(("127.0.0.1", 0)) as slow, pair(timeout=0.3) as (_, fetcher, _):

        def trickle() -> None:
            connection, _ = slow.accept()
            with connection:
                try:
                    while True:
                        connection.sendall(b"\1")
                        time.sleep(0.05)
                except OSError:
                    pass

        threading.Thread(target=trickle, daemon=True).start()
        assert fetcher.fetch(slow.getsockname()[1], {0: 1}) == 0


def test_a_frame_that_is_too_large_is_not_read():
    with pair() as (sender, _, port), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"x" * 100)
        assert b"a frame of 4294967295" in connection.recv(4096)
        assert sender.keep([1]).done() is False


def test_a_peer_without_the_secret_gets_nothing(caplog: pytest.LogCaptureFixture):
    ours, other = b"0123456789abcdef", b"fedcba9876543210"
    for of_sender, of_fetcher in ((ours, other), (ours, b""), (b"", ours)):
        with pair(of_sender={"secret": of_sender}, secret=of_fetcher) as (sender, fetcher, port):
            ended = sender.keep([3])
            assert fetcher.fetch(port, {0: 1}) == 0
            assert not ended.done()
    assert "the secrets of the two engines differ" in caplog.text
    with pair(of_sender={"secret": ours}, secret=ours) as (sender, fetcher, port):
        sender.keep([3])
        assert fetcher.fetch(port, {0: 1}) == 1


@pytest.mark.parametrize(
    ("layout", "changes", "position", "words"),
    [
        (LAYOUT | {"block_size": "32"}, {}, 0, "the engines differ in block_size: 16 sends, and 32 fetches"),
        (LAYOUT, {"engine_id": "an earlier one"}, 0, "the engine that computed the prompt has ended"),
        (LAYOUT, {"digest": b"of other tokens"}, 0, "the prompt there has other tokens"),
        (LAYOUT, {}, 1, "outside of the 1 of the prompt"),
        (LAYOUT, {}, -1, "outside of the 1 of the prompt"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    caplog: pytest.LogCaptureFixture, layout: dict[str, str], changes: dict[str, Any], position: int, words: str
):
    with pair(layout=layout) as (sender, fetcher, port):
        sender.keep([3])
        assert fetcher.fetch(port, {position: 1}, replace(PROMPT, **changes)) == 0
    assert words in caplog.text


def test_a_prompt_that_nobody_fetches_ends_when_its_time_is_up():
    clock = Clock()
    prompts = KeptPrompts(10.0, clock)
    ended = prompts.add(Transfer(1, "send", (BlockCopy(4, 0),), PROMPT))
    clock.now += 9
    prompts.look()
    assert not ended.done()
    clock.now += 2
    prompts.look()
    assert ended.result(0) == 0
    with pytest.raises(TransferError, match="not kept any more"), prompts.taken("key", b"digest", 0.0):
        pass


def test_a_prompt_that_is_being_sent_keeps_its_places_after_its_time():
    clock = Clock()
    prompts = KeptPrompts(10.0, clock)
    ended = prompts.add(Transfer(1, "send", (BlockCopy(4, 0),), PROMPT))
    with prompts.taken("key", b"digest", 0.0) as places:
        clock.now += 11
        prompts.look()
        assert not ended.done()
        assert places == [4]
    assert ended.result(0) == 1


def test_a_prompt_that_never_comes_is_not_waited_for_long(caplog: pytest.LogCaptureFixture):
    with pair(of_sender={"timeout": 0.2}) as (_, fetcher, port):
        assert fetcher.fetch(port, {0: 1}) == 0
    assert "not kept any more" in caplog.text


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be had"):
            Worker(make_config("kv_producer", port))


def test_closing_ends_fetches_that_wait(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as silent, pair(timeout=60.0) as (_, fetcher, _):
        prompt = replace(PROMPT, host="127.0.0.1", port=silent.getsockname()[1])
        waits = fetcher.connector.begin(Transfer(1, "fetch", (BlockCopy(0, 1),), prompt))
        with silent.accept()[0]:
            fetcher.connector.close()
            assert waits.result(5) == 0
    assert not caplog.records
