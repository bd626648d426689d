"""Pages over a connection between two workers: what arrives is right, and nothing that goes wrong lasts long."""

from __future__ import annotations

import logging
import socket
import threading
import time
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from atom_core.config import ConfigError
from atom_core.messages import BlockCopy, Transfer
from atom_core.worker.transfer import wire
from atom_core.worker.transfer.kept_prompts import KeptPrompts
from atom_core.worker.transfer.wire import TransferError
from clock import Clock
from meddling_proxy import MeddlingProxy
from transferring_workers import (
    LAYOUT,
    PROMPT,
    WAYS,
    MakePair,
    Worker,
    flip,
    length_of_answer,
    make_config,
    pair_of_workers,
)


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> MakePair:
    if request.param == "nixl":
        pytest.importorskip("nixl")
    return partial(pair_of_workers, request.param)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch):
    """Two pages of 28 bytes a frame."""
    monkeypatch.setattr(wire, "FRAME_BYTES", 60)


def test_pages_get_where_they_are_asked_for(pair: MakePair):
    with pair() as (sender, fetcher, port):
        ended = sender.keep([3, 4, 5, 6, 7])
        assert fetcher.fetch(port, {0: 9, 2: 1, 3: 2, 4: 8}) == 4
        assert fetcher.values(9, 1, 2, 8, 0, 3) == [103, 105, 106, 107, 0, 3]
        assert ended.result(5) == 5


def test_who_needs_nothing_lets_the_prompt_go(pair: MakePair):
    with pair() as (sender, fetcher, port):
        ended = sender.keep([3, 4])
        assert fetcher.fetch(port, {}) == 0
        assert ended.result(5) == 2


def test_a_prompt_is_given_out_once(pair: MakePair, caplog: pytest.LogCaptureFixture):
    with pair() as (sender, fetcher, port):
        sender.keep([3, 4])
        assert fetcher.fetch(port, {0: 1}) == 1
        assert fetcher.fetch(port, {1: 2}) == 0
        assert fetcher.values(2) == [2]
    assert "not kept any more" in caplog.text


def test_who_comes_before_the_step_that_keeps_the_prompt_waits_for_it(pair: MakePair):
    with pair() as (sender, fetcher, port):
        later = threading.Timer(0.2, lambda: sender.keep([3]))
        later.start()
        assert fetcher.fetch(port, {0: 1}) == 1
        later.join()


def test_a_byte_that_was_changed_anywhere_is_found_out(pair: MakePair):
    num_bytes = length_of_answer(pair)
    with pair(timeout=0.3, of_sender={"timeout": 0.3}) as (sender, fetcher, port):
        for number in range(0, num_bytes, 7):
            with MeddlingProxy(port, flip(number)) as proxy:
                sender.keep([3, 4, 5, 6, 7], replace(PROMPT, key=str(number)))
                num_done = fetcher.fetch(proxy.port, dict(enumerate(range(5))), replace(PROMPT, key=str(number)))
            assert fetcher.values(*range(num_done)) == [103.0 + place for place in range(num_done)]
            assert num_done < 5


@pytest.mark.parametrize("where", [0, 1, 50, -40, -1])
def test_a_connection_that_is_cut_anywhere_ends_the_transfer(pair: MakePair, where: int):
    number = where if where >= 0 else length_of_answer(pair) + where

    def cut(data: bytearray, before: int) -> bool:
        del data[max(number - before, 0) :]
        return bool(data)

    with pair(timeout=0.3, of_sender={"timeout": 0.3}) as (sender, fetcher, port), MeddlingProxy(port, cut) as proxy:
        ended = sender.keep([3, 4, 5, 6, 7])
        begun = time.monotonic()
        assert fetcher.fetch(proxy.port, dict(enumerate(range(5)))) < 5
        assert time.monotonic() - begun < 5
        if where < 0:
            assert ended.result(5) == 0


def test_a_peer_that_says_nothing_is_left_after_the_timeout(pair: MakePair, caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as silent, pair(timeout=0.2) as (_, fetcher, _):
        assert fetcher.fetch(silent.getsockname()[1], {0: 1}) == 0
    assert "is computed here: timed out" in caplog.text


def test_a_peer_that_says_one_byte_at_a_time_does_not_hold_anybody_up(pair: MakePair):
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


def test_a_frame_that_is_too_large_is_not_read(pair: MakePair):
    with pair() as (sender, _, port), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"x" * 100)
        assert b"a frame of 4294967295" in connection.recv(4096)
        assert sender.keep([1]).done() is False


def test_a_peer_without_the_secret_gets_nothing(pair: MakePair, caplog: pytest.LogCaptureFixture):
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
    pair: MakePair,
    caplog: pytest.LogCaptureFixture,
    layout: dict[str, str],
    changes: dict[str, Any],
    position: int,
    words: str,
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


def test_a_prompt_that_never_comes_is_not_waited_for_long(pair: MakePair, caplog: pytest.LogCaptureFixture):
    with pair(of_sender={"timeout": 0.2}) as (_, fetcher, port):
        assert fetcher.fetch(port, {0: 1}) == 0
    assert "not kept any more" in caplog.text


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be had"):
            Worker(make_config("kv_producer", port))


def test_closing_ends_fetches_that_wait(pair: MakePair, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as silent, pair(timeout=60.0) as (_, fetcher, _):
        prompt = replace(PROMPT, host="127.0.0.1", port=silent.getsockname()[1])
        waits = fetcher.connector.begin(Transfer(1, "fetch", (BlockCopy(0, 1),), prompt))
        with silent.accept()[0]:
            fetcher.connector.close()
            assert waits.result(5) == 0
    assert not caplog.records
