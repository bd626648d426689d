"""Pages through memory of two processes: it holds pages of the one peer, and nothing is left of it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atom_core.worker.transfer import shared_memory, wire
from atom_core.worker.transfer.shared_memory import SharedMemory
from atom_core.worker.transfer.wire import SharedOffer
from meddling_proxy import MeddlingProxy
from transferring_workers import LAYOUT, length_of_answer, pair_of_workers

SHAPE, MARK = (3, 28), bytes(range(32))
EVERYTHING = dict(enumerate(range(5)))


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch):
    """Two pages of 28 bytes a frame, and two frames a window."""
    monkeypatch.setattr(wire, "FRAME_BYTES", 60)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors of the windows that were made."""
    descriptors: list[int] = []
    make = os.memfd_create

    def keep(*arguments: Any) -> int:
        descriptors.append(make(*arguments))
        return descriptors[-1]

    monkeypatch.setattr(os, "memfd_create", keep)
    return descriptors


def num_left() -> int:
    """How often this process has a window open or mapped."""
    opened = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(shared_memory.NAME in name for name in (*opened, *Path("/proc/self/maps").read_text().splitlines()))


@pytest.mark.parametrize("of_sender", [True, False])
@pytest.mark.parametrize("of_fetcher", [True, False])
def test_pages_leave_the_socket_where_both_sides_share_memory(of_sender: bool, of_fetcher: bool):
    pair = partial(pair_of_workers, "shared memory", of_sender={"shared_memory": of_sender}, shared_memory=of_fetcher)
    has_pages = length_of_answer(pair) > 5 * 28 + 3 * 50
    assert has_pages is not (of_sender and of_fetcher)


def test_a_window_holds_two_frames_however_long_the_prompt_is(made: list[int]):
    sizes = []

    def look(data: bytearray, before: int) -> bool:
        sizes.extend(os.fstat(descriptor).st_size for descriptor in made)
        return True

    with pair_of_workers("shared memory") as (sender, fetcher, port), MeddlingProxy(port, look) as proxy:
        sender.keep([3, 4, 5, 6, 7, 8, 9])
        assert fetcher.fetch(proxy.port, dict(enumerate(range(7)))) == 7
        assert fetcher.values(*range(7)) == [103, 104, 105, 106, 107, 108, 109]
    assert set(sizes) == {4 * 28 + len(MARK)}


def damage(made: list[int], data: bytearray, before: int) -> bool:
    if made:
        os.pwrite(made[-1], b"Z", 30)  # no byte of what is sent
    return True


def cut(made: list[int], data: bytearray, before: int) -> bool:
    return not made


@pytest.mark.parametrize(("meddle", "num_done"), [(damage, 0), (cut, 0), (lambda *rest: True, 5)])
def test_what_is_damaged_is_found_out_and_nothing_is_left(
    made: list[int], meddle: Callable[[list[int], bytearray, int], bool], num_done: int
):
    meddle = partial(meddle, made)
    with pair_of_workers("shared memory") as (sender, fetcher, port), MeddlingProxy(port, meddle) as proxy:
        ended = sender.keep([3, 4, 5, 6, 7])
        assert fetcher.fetch(proxy.port, EVERYTHING) == num_done
        assert ended.result(5) == num_done
    assert len(made) == 1
    assert num_left() == 0


PEER = """
import os, socket, time
from atom_core.worker.transfer.shared_memory import SharedMemory
from atom_core.worker.transfer.wire import VERSION, Channel, Fetch, Hello, Pages, Welcome
channel = Channel(socket.create_connection(("127.0.0.1", {port})), 20.0)
channel.send(Hello(VERSION, os.urandom(32)))
window = SharedMemory().make((4, 28), channel.expect(Welcome).nonce)
channel.send(Fetch(b"", {layout!r}, "engine", "key", b"digest", [0, 1, 2, 3, 4], window.offer))
channel.expect(Pages)
print(bytes(window.pages[0]).hex(), flush=True)
time.sleep(60)
"""


def test_of_a_peer_that_is_killed_nothing_is_left():
    with pair_of_workers("shared memory") as (sender, _, port):
        ended = sender.keep([3, 4, 5, 6, 7])
        script = PEER.format(port=port, layout=LAYOUT)
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            assert peer.stdout.readline().strip() == bytes(sender.places.page(0)).hex()
            assert num_left() > 0
            peer.kill()
            assert ended.result(10) == 0
    assert num_left() == 0


def test_a_window_is_opened_by_who_drew_its_mark_and_knows_its_size():
    memory = SharedMemory()
    window = memory.make(SHAPE, MARK)
    offer = window.offer
    assert offer is not None
    assert memory.open(offer, SHAPE, MARK) is not None
    assert memory.open(offer, SHAPE, MARK[::-1]) is None
    assert memory.open(offer, (4, 28), MARK) is None
    assert memory.open(SharedOffer(1 << 30, offer.descriptor), SHAPE, MARK) is None
    window.close()
    assert memory.open(offer, SHAPE, MARK) is None


def test_what_is_no_window_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with (tmp_path / "file").open("wb+") as file:
        file.write(bytes(3 * 28) + MARK)
        file.flush()
        monkeypatch.setattr(os, "open", lambda *arguments: pytest.fail("it was opened"))
        assert SharedMemory().open(SharedOffer(os.getpid(), file.fileno()), SHAPE, MARK) is None


def test_a_window_that_could_be_made_smaller_is_not_written_to():
    with os.fdopen(os.memfd_create(shared_memory.NAME, os.MFD_ALLOW_SEALING), "wb") as file:
        file.write(bytes(3 * 28) + MARK)
        file.flush()
        offer = SharedOffer(os.getpid(), file.fileno())
        assert SharedMemory().open(offer, SHAPE, MARK) is None
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        assert SharedMemory().open(offer, SHAPE, MARK) is not None


def test_where_no_memory_can_be_shared_pages_go_through_the_socket(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "memfd_create")
    with pair_of_workers("shared memory") as (sender, fetcher, port):
        sender.keep([3, 4])
        assert fetcher.fetch(port, {0: 1, 1: 2}) == 2
        assert fetcher.values(1, 2) == [103, 104]
