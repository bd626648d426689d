"""Who comes to an engine as the host of a rank: nobody is let in who does not prove that he knows its secret."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from select import select
from typing import Any

import pytest

from atom_core.errors import EngineStartError
from atom_core.executor.launchers import doorway
from atom_core.executor.launchers.connections import connect, interface_of, listen
from atom_core.executor.launchers.doorway import Doorway
from atom_core.executor.launchers.handshake import (
    Caller,
    NotProvedError,
    Purpose,
    make_secret,
    prove_as_engine,
    prove_as_host,
)
from atom_core.executor.processes.channel import Channel

SECRET = b"s" * 32
STEPS_OF_1 = Caller(1, Purpose.STEPS)
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def door() -> Iterator[Doorway]:
    with closing(Doorway("127.0.0.1", range(2), SECRET)) as made:
        yield made


Come = Callable[..., list[socket.socket]]


@pytest.fixture
def come(door: Doorway) -> Iterator[Come]:
    """Connects to the door as the host of a rank."""
    with ExitStack() as kept:

        def connected(rank: int, secret: bytes = SECRET) -> list[socket.socket]:
            return [kept.enter_context(connect(door.address, secret, rank, purpose)) for purpose in Purpose]

        yield connected


def said_by(ends: Ends, host: Callable[[socket.socket], object]) -> Caller:
    """What the engine takes the other end for, which does as `host` says."""
    with ThreadPoolExecutor(1) as thread:
        doing = thread.submit(host, ends[1])
        caller = prove_as_engine(ends[0], SECRET, 5.0)
        doing.result()
    return caller


def test_both_ends_learn_that_the_other_knows_the_secret(ends: Ends):
    assert said_by(ends, lambda end: prove_as_host(end, SECRET, STEPS_OF_1)) == STEPS_OF_1


def test_every_engine_has_a_secret_of_its_own():
    assert len({make_secret() for _ in range(8)}) == 8
    assert len(make_secret()) == 32


def test_a_host_with_another_secret_is_not_let_in(ends: Ends):
    with ThreadPoolExecutor(1) as thread:
        host = thread.submit(prove_as_host, ends[1], b"t" * 32, STEPS_OF_1)
        with pytest.raises(NotProvedError, match="does not know this engine's secret"):
            prove_as_engine(ends[0], SECRET)
        ends[0].close()
        with pytest.raises(NotProvedError, match="closed the connection"):
            host.result()


def test_an_engine_with_another_secret_is_found_out(ends: Ends):
    def pretend(end: socket.socket) -> None:
        end.sendall(b"n" * 32)
        end.recv(1024)
        end.sendall(b"p" * 32)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(pretend, ends[0])
        with pytest.raises(NotProvedError, match="not this rank's engine"):
            prove_as_host(ends[1], SECRET, STEPS_OF_1)


def test_a_proof_of_an_earlier_connection_is_worth_nothing(ends: Ends):
    heard: list[bytes] = []

    class Overheard(socket.socket):
        def send(self, data: Any, *_: int) -> int:
            heard.append(bytes(data))
            return super().send(data)

    def prove(end: socket.socket) -> None:
        with Overheard(fileno=end.detach()) as overheard:
            prove_as_host(overheard, SECRET, STEPS_OF_1)

    said_by(ends, prove)
    [proof] = heard
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(proof)
        with pytest.raises(NotProvedError, match="does not know this engine's secret"):
            prove_as_engine(ours, SECRET)


def test_a_hosts_own_proof_is_not_taken_for_that_of_its_engine(ends: Ends):
    def echo(end: socket.socket) -> None:
        end.sendall(b"n" * 32)
        end.sendall(end.recv(1024)[-32:])

    with ThreadPoolExecutor(1) as thread:
        thread.submit(echo, ends[0])
        with pytest.raises(NotProvedError, match="not this rank's engine"):
            prove_as_host(ends[1], SECRET, STEPS_OF_1)


def test_a_proof_for_one_rank_does_not_let_in_another(ends: Ends):
    class Changing(socket.socket):
        def send(self, data: Any, *_: int) -> int:
            return super().send(b"\0\0\0\0" + bytes(data)[4:])

    def prove(end: socket.socket) -> None:
        with Changing(fileno=end.detach()) as changing, pytest.raises(NotProvedError):
            prove_as_host(changing, SECRET, STEPS_OF_1, 0.2)

    with pytest.raises(NotProvedError, match="secret"):
        said_by(ends, prove)


@pytest.mark.parametrize("says", [b"", b"\0"], ids=["nothing", "a byte now and then"])
def test_who_says_too_little_is_left_after_a_while(says: bytes, ends: Ends):
    is_over = threading.Event()

    def trickle() -> None:
        while not is_over.wait(0.02):
            ends[1].sendall(says)

    threading.Thread(target=trickle, daemon=True).start()
    with pytest.raises(NotProvedError, match="took too long|said nothing: timed out"):
        prove_as_engine(ends[0], SECRET, 0.2)
    is_over.set()


def test_who_closes_is_left(ends: Ends):
    ends[1].close()
    with pytest.raises(NotProvedError, match="closed the connection|did not arrive"):
        prove_as_engine(ends[0], SECRET)


def test_a_rank_comes_with_two_connections_that_carry_messages(door: Doorway, come: Come):
    steps, lifeline = come(1)
    ours, news = door.wait_for(1, 5.0)
    with ours, news:
        Channel(ours).send(b"a step")
        assert Channel(steps).receive() == b"a step"
        lifeline.sendall(b"news")
        assert news.recv(16) == b"news"


def test_a_rank_comes_once(come: Come):
    both = [come(1)[0], come(1)[0]]
    (refused,), _, _ = select(both, [], [], 5.0)  # on a busy machine the first to connect may prove itself last
    assert refused.recv(1) == b""
    both.remove(refused)
    assert select(both, [], [], 0.05) == ([], [], [])


def test_a_rank_that_is_not_expected_is_not_let_in(door: Doorway, caplog: pytest.LogCaptureFixture):
    with connect(door.address, SECRET, 2, Purpose.STEPS) as end:
        end.settimeout(5.0)
        assert end.recv(1) == b""
    assert "not let in: it says that it is rank 2, which is not expected" in caplog.text


def test_strangers_keep_no_rank_waiting(door: Doorway, come: Come):
    strangers = [socket.create_connection(door.address) for _ in range(5)]
    with pytest.raises(NotProvedError):
        come(0, b"t" * 32)
    theirs, ours = come(0), door.wait_for(0, 2.0)
    assert [end.getpeername() for end in ours] == [end.getsockname() for end in theirs]
    for end in (*strangers, *ours):
        end.close()


def test_so_many_strangers_are_heard_at_once(door: Doorway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doorway, "MOST_UNPROVED", 2)
    waiting = [socket.create_connection(door.address) for _ in range(2)]
    for end in waiting:
        assert len(end.recv(32)) == 32
    with socket.create_connection(door.address) as third:
        third.settimeout(5.0)
        assert third.recv(32) == b""
    for end in waiting:
        end.close()


def test_a_rank_that_does_not_come_is_named_with_the_address(door: Doorway):
    with pytest.raises(EngineStartError, match=r"rank 1 did not come to 127.0.0.1:\d+ within 0 s: can its node reach"):
        door.wait_for(1, 0.01)


def test_a_rank_that_cannot_come_is_waited_for_no_longer(door: Doorway):
    started = time.monotonic()
    door.expect_no_more(1, "was not started: there is no python")
    with pytest.raises(EngineStartError, match="rank 1 was not started: there is no python"):
        door.wait_for(0, 30.0)
    assert time.monotonic() - started < 10


def test_nothing_listens_once_the_door_is_closed_and_who_came_is_sent_away(door: Doorway, come: Come):
    [steps, _] = come(0)
    door.close()
    steps.settimeout(5.0)
    assert steps.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(door.address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_nobody_listens_on_every_network(address: str):
    with pytest.raises(ValueError, match="name the address of one"):
        listen(address)


def test_an_engine_listens_at_the_address_that_it_is_told_and_no_other(door: Doorway):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", door.address[1]))


def test_the_network_of_an_address_is_found():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.7") is None


def test_an_announced_message_that_is_too_long_is_refused_before_it_is_read(ends: Ends):
    ends[1].sendall((1 << 62).to_bytes(8, "little"))
    with pytest.raises(ConnectionError, match="a message of 4611686018427387904 bytes was announced, and the longest"):
        Channel(ends[0]).receive()
