"""The parts of a connection by themselves, without a server: who is let in, what lingers, who has left."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
from typing import Any

import pytest

from atom_core import seldom
from atom_core.seldom import SeldomWarning
from atom_server import ServerOptions
from atom_server.connections import departure, descriptors, listen
from atom_server.connections.departure import Departure
from atom_server.connections.descriptors import connections_that_fit, watch_descriptors
from atom_server.connections.limits import ConnectionLimits
from atom_server.connections.lingering_transport import LingeringTransport
from atom_server.connections.listen import AddressError, is_loopback, open_socket, url_of
from atom_server.connections.open_connections import OpenConnections

LOGGER = logging.getLogger("atom_server.test")


def lines_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# Limits.


def test_the_limits_of_a_connection_are_these_and_those_of_the_options():
    limits = ConnectionLimits()
    assert (limits.head_bytes, limits.num_fields, limits.num_pipelined) == (65536, 128, 16)
    assert (limits.request_s, limits.idle_s, limits.linger_s, limits.linger_bytes) == (30.0, 5.0, 5.0, 33554432)
    options = ServerOptions(timeout_request=60, timeout_keep_alive=7)
    chosen = ConnectionLimits.of(options)
    assert (chosen.request_s, chosen.idle_s, chosen.linger_s) == (60, 7, 5.0)
    assert ConnectionLimits.of(ServerOptions(timeout_request=2)).linger_s == 2


# Warnings.


def test_a_warning_comes_once_a_minute_and_tells_how_often_it_would_have_come(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr(seldom.time, "monotonic", lambda: now)
    warn = SeldomWarning(LOGGER)
    for now in (100.0, 100.0, 159.9):  # noqa: B007
        warn("full")
    assert lines_of(caplog) == ["full"]
    for now in (160.0, 161.0, 220.0, 280.0):  # noqa: B007
        warn("full")
    again = ["full (2 more times since the last such line)", "full (1 more times since the last such line)", "full"]
    assert lines_of(caplog) == ["full", *again]


# Who is let in.


class Held:
    """A connection that knows whether it was closed."""

    was_aborted = False

    def abort(self) -> None:
        self.was_aborted = True


def test_room_is_made_by_closing_whoever_waited_longest(caplog):
    connections, held = OpenConnections(3), [Held() for _ in range(6)]
    add: Any = connections.add
    assert all(add(connection) for connection in held[:3])
    assert not caplog.records
    connections.set_works(held[0], works=True)  # type: ignore[arg-type]
    assert add(held[3])
    assert [connection.was_aborted for connection in held[:4]] == [False, True, False, False]
    assert lines_of(caplog) == [
        "there are 3 connections, as many as may be (--max-connections): closed the one that waited longest"
    ]
    # Whoever waits again does so behind the others.
    connections.set_works(held[2], works=True)  # type: ignore[arg-type]
    connections.set_works(held[2], works=False)  # type: ignore[arg-type]
    assert add(held[4])
    assert [connection.was_aborted for connection in held] == [False, True, False, True, False, False]
    # One that ends makes room, and does not come back by waiting.
    connections.discard(held[2])  # type: ignore[arg-type]
    connections.set_works(held[2], works=False)  # type: ignore[arg-type]
    assert add(held[5])
    assert not held[2].was_aborted
    assert not held[4].was_aborted


def test_where_all_are_being_answered_nobody_is_closed(caplog):
    connections, held = OpenConnections(1), [Held() for _ in range(3)]
    assert connections.add(held[0])  # type: ignore[arg-type]
    connections.set_works(held[0], works=True)  # type: ignore[arg-type]
    assert not connections.add(held[1])  # type: ignore[arg-type]
    assert not held[0].was_aborted
    assert lines_of(caplog) == [
        "there are 1 connections, as many as may be (--max-connections): refused another, since all are being answered"
    ]


# Descriptors.


@pytest.fixture
def limit(monkeypatch):
    """``limit(soft, hard)`` sets what the process may open; what it raises its limit to is `limit.raised`."""

    def set_limit(soft, hard, *, fails=False):
        def raise_to(kind, limits):
            if fails:
                raise OSError(errno.EPERM, "not allowed")
            set_limit.raised = limits

        set_limit.raised = None
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind: (soft, hard))
        monkeypatch.setattr(descriptors.resource, "setrlimit", raise_to)

    monkeypatch.setattr(descriptors.os, "listdir", lambda folder: ["0", "1", "2", "3"])
    return set_limit


INFINITE = descriptors.resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "fits", "raised"),
    [
        (10_000, 10_000, 100, None),
        (120, 10_000, 100, None),
        (119, 10_000, 100, (120, 10_000)),
        (64, 119, 99, (119, 119)),
        (64, INFINITE, 100, (120, INFINITE)),
        (INFINITE, INFINITE, 100, None),
        (10, 10, 1, None),
    ],
)
def test_a_connection_takes_a_descriptor_and_sixteen_are_spared(limit, caplog, soft, hard, fits, raised):
    limit(soft, hard)
    assert connections_that_fit(100) == fits
    assert limit.raised == raised
    most = (raised or (soft, hard))[0]
    told = f"takes at most {fits} connections instead of 100: the process may open {most} files (ulimit -n)"
    assert lines_of(caplog) == ([told] if fits < 100 else [])


def test_a_limit_that_cannot_be_raised_stays(limit):
    limit(64, 10_000, fails=True)
    assert connections_that_fit(100) == 44


async def test_while_no_descriptor_is_left_the_log_says_so(limit, caplog, monkeypatch):
    limit(64, 64)
    looks = 0

    def dup(descriptor):
        nonlocal looks
        looks += 1
        assert descriptor == 2  # which is always open
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(descriptors.os, "dup", dup)
    monkeypatch.setattr(descriptors, "_CHECK_INTERVAL_S", 0)
    watching = asyncio.ensure_future(watch_descriptors())
    while looks < 3:
        await asyncio.sleep(0)
    watching.cancel()
    told = "new connections are dropped: Too many open files (ulimit -n is 64); lower --max-connections"
    assert lines_of(caplog) == [told]


async def test_a_descriptor_that_was_free_is_given_back(monkeypatch):
    before = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(descriptors, "_CHECK_INTERVAL_S", 0)
    watching = asyncio.ensure_future(watch_descriptors())
    for _ in range(3):
        await asyncio.sleep(0)
    watching.cancel()
    assert len(os.listdir("/dev/fd")) <= before + 1  # the loop may open one of its own


# The last answer.


class Wire(asyncio.Transport):
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.written: list[bytes] = []
        self.unsent = [0]

    def write(self, data) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        """The next of `unsent`, whose last stays."""
        return self.unsent.pop(0) if len(self.unsent) > 1 else self.unsent[0]

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": "somebody"}.get(name, default)

    def __getattribute__(self, name: str) -> Any:
        if name in ("close", "abort", "resume_reading", "pause_reading", "write_eof"):
            return lambda: self.done.append(name)
        return super().__getattribute__(name)


class Watcher:
    """Stands where a `Departure` stands."""

    def __init__(self, done: list[str]) -> None:
        self.watch = lambda: done.append("watch")
        self.stop = lambda: done.append("stop")


def make_transport(*, is_sending=True, **limits: Any) -> tuple[LingeringTransport, Wire]:
    wire = Wire()
    chosen = ConnectionLimits(**{"linger_s": 0.0, "request_s": 0.0, "linger_bytes": 10} | limits)
    watcher: Any = Watcher(wire.done)
    return LingeringTransport(wire, chosen, lambda: is_sending, watcher), wire


async def next_turns() -> None:
    """Timers of no seconds have run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_where_the_client_still_sends_only_the_writing_ends_at_first():
    transport, wire = make_transport(linger_s=1000.0)
    transport.write(b"answer")
    transport.close()
    assert wire.done == ["stop", "resume_reading", "write_eof"]
    assert transport.is_lingering
    assert transport.is_closing()
    transport.write(b"more")
    assert wire.written == [b"answer"]
    transport.close()
    transport.pause_reading()
    transport.resume_reading()
    assert len(wire.done) == 3
    transport.discard(10)
    assert "abort" not in wire.done
    transport.discard(1)
    assert wire.done[3:] == ["abort"]
    transport.stop_watching()


async def test_lingering_ends_after_its_time():
    transport, wire = make_transport(request_s=1000.0)
    transport.close()
    assert "abort" not in wire.done
    await next_turns()
    assert wire.done[-1] == "abort"


async def test_a_client_that_has_sent_all_is_closed_at_once():
    transport, wire = make_transport(is_sending=False, linger_s=1000.0)
    assert not transport.is_closing()
    transport.close()
    assert wire.done == ["stop", "close"]
    assert not transport.is_lingering
    await next_turns()
    assert wire.done[-1] == "abort"


async def test_a_client_that_takes_what_is_written_is_waited_for():
    # What is unsent is looked at when the watch begins, when its time is over, and when it goes on.
    for unsent in ([3, 3], [3, 2, 2, 1, 1, 1], [3, 2, 2, 4], [3, 0], [0, 0]):
        transport, wire = make_transport()
        wire.unsent = list(unsent)
        transport.watch(0.0)
        while not wire.done:
            await asyncio.sleep(0)
        assert wire.done == ["abort"]
        assert wire.unsent == unsent[-1:]
    transport, wire = make_transport()
    transport.watch(0.0)
    transport.stop_watching()
    await next_turns()
    assert wire.done == []


async def test_a_transport_hands_on_what_it_has_no_opinion_about():
    transport, wire = make_transport()
    assert transport.can_write_eof()
    assert transport.get_extra_info("peername") == "somebody"
    assert transport.get_extra_info("nothing", 5) == 5
    transport.pause_reading()
    transport.resume_reading()
    assert wire.done == ["pause_reading", "watch", "stop", "resume_reading"]
    transport.close_soon()
    transport.abort()
    assert wire.done[4:] == ["close", "abort"]
    assert not transport.is_lingering


# Who has left.


class Looked:
    """Looks at one end of a pair of sockets."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.done: list[str] = []
        transport: Any = self
        self.departure = Departure(
            transport, probe=lambda: self.done.append("probe"), on_gone=lambda: self.done.append("gone")
        )

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self.near}[name]

    def __enter__(self) -> Looked:
        return self

    def __exit__(self, *_: object) -> None:
        self.departure.stop()
        self.near.close()
        self.far.close()


async def test_whoever_is_there_is_asked_again_and_whoever_is_gone_is_told_once(monkeypatch):
    assert departure._LOOK_S == 0.4
    assert select.POLLERR | select.POLLHUP == departure._GONE
    monkeypatch.setattr(departure, "_LOOK_S", 0.0)
    with Looked() as looked:
        looked.departure.watch()
        looked.departure.watch()  # is watched already
        while len(looked.done) < 3:
            await asyncio.sleep(0)
        assert set(looked.done) == {"probe"}
        looked.far.close()
        while "gone" not in looked.done:
            await asyncio.sleep(0)
        num_looks = len(looked.done)
        await next_turns()
        assert len(looked.done) == num_looks
        assert looked.done[-1] == "gone"


async def test_nobody_is_asked_after_the_watch_has_ended(monkeypatch):
    monkeypatch.setattr(departure, "_LOOK_S", 0.0)
    with Looked() as looked:
        looked.departure.watch()
        looked.departure.stop()
        await next_turns()
        assert looked.done == []
        looked.departure.watch()
        await next_turns()
        assert looked.done[0] == "probe"


# Where the server listens.


def test_why_a_server_cannot_listen_is_told_in_one_line():
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        assert not taken.getblocking()
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with pytest.raises(AddressError, match=rf"^port {port} on 127.0.0.1 is in use: stop what listens there, or"):
            open_socket("127.0.0.1", port)
    with pytest.raises(AddressError, match=r"^192.0.2.1 is not an address of this machine: choose another with --host"):
        open_socket("192.0.2.1", 0)
    with pytest.raises(AddressError, match=r"^cannot listen on host 'no such host'"):
        open_socket("no such host", 0)
    explain = listen._explain
    assert explain(OSError(errno.EACCES, "x"), "h", 80) == "port 80 needs privileges: choose one from 1024 with --port"
    assert explain(OSError(errno.EIO, "broken"), "h", 80) == "cannot listen on h:80: broken"
    with open_socket("0.0.0.0", 0) as everywhere:
        assert url_of(everywhere).startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *[("localhost", True), ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("::1%lo", True)],
        *[("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
    ],
)
def test_whether_only_this_machine_reaches_a_host(host, is_local):
    assert is_loopback(host) is is_local
