"""How connections end, whoever ends them: deadlines that every machine meets, and clients that end their side."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from http_edge import CLOSING, WHOLE, Client, last_answer, plain_app, serving

# Deadlines, which a client that does nothing meets however slow the machine is.


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"", "headers"),
        (WHOLE[:30], "headers"),
        (b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n", "headers"),
        (b"POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc", "body"),
    ],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
def test_whoever_does_not_finish_a_request_is_told_so_and_closed(sent, part):
    with serving(plain_app, timeout_request=0.3) as port, Client(port) as client:
        client.send(sent)
        answer = last_answer(client.rest())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (408, "timeout")
    assert error["message"] == f"the {part} of the request did not arrive within 0.3 s"
    assert answer.headers["connection"] == "close"


def test_an_idle_connection_is_closed_without_a_word():
    with serving(plain_app, timeout_keep_alive=1, timeout_request=1000) as port, Client(port) as client:
        client.send(WHOLE)
        received = client.rest()
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 200 ")


def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for():
    async def app(scope, receive, send):
        await asyncio.sleep(0.5)
        await plain_app(scope, receive, send)

    with serving(app, timeout_request=0.1, timeout_keep_alive=1) as port, Client(port) as client:
        client.send(CLOSING)
        assert last_answer(client.rest()).status_code == 200


def test_the_deadline_of_an_idle_connection_ends_with_its_next_request():
    async def app(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.sleep(1.2)
        await plain_app(scope, receive, send)

    with serving(app, timeout_keep_alive=1) as port, Client(port) as client:
        client.send(WHOLE)
        client.answer()
        client.send(CLOSING.replace(b"/health", b"/slow"))
        assert last_answer(client.rest()).status_code == 200


def test_a_client_that_takes_nothing_is_cut_off_in_the_end():
    cut_off = threading.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": bytes(2**18), "more_body": True})
        cut_off.set()  # what is sent to nobody is thrown away

    with serving(app, timeout_request=0.2) as port, Client(port, receive_buffer=4096) as client:
        client.send(WHOLE)
        assert cut_off.wait(30), "the connection is held for good"
        assert len(client.rest()) < 200 * 2**18


def test_silent_connections_make_room_for_one_that_asks():
    with serving(plain_app, max_connections=2) as port, Client(port) as first, Client(port) as second:
        for client in (first, second):
            client.send(WHOLE)
            assert client.answer().status_code == 200
        with Client(port) as third:
            third.send(CLOSING)
            assert last_answer(third.rest()).status_code == 200
        assert first.rest() == b""  # it has waited longest
        second.send(CLOSING)
        assert last_answer(second.rest()).status_code == 200


class HalfClosed(Client):
    """A client that ends its own side behind what it has sent."""

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)


async def late_app(scope, receive, send):
    await asyncio.sleep(0.3)
    await plain_app(scope, receive, send)


def test_whoever_ends_its_own_side_gets_the_answers_that_it_is_owed():
    with serving(late_app) as port:
        for sent, num_answers in ((WHOLE, 1), (WHOLE * 2, 2), (b"", 0)):
            with HalfClosed(port) as client:
                client.send(sent)
                client.end()
                assert client.rest().count(b"HTTP/1.1 200 ") == num_answers


def test_whoever_ends_its_side_in_the_middle_of_a_request_is_closed():
    with serving(late_app, timeout_request=1000) as port:
        for sent in (WHOLE[:20], WHOLE + WHOLE[:20]):
            with HalfClosed(port) as client:
                client.send(sent)
                client.end()
                assert b"HTTP/1.1 408" not in client.rest()


class Gated:
    """An app that answers once it is let, unless it hears before that its client left."""

    def __init__(self, *, streams: bool = False) -> None:
        self.streams = streams
        self.may_answer, self.left = threading.Event(), threading.Event()

    async def __call__(self, scope, receive, send) -> None:
        while (await receive())["more_body"]:
            pass
        if self.streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done() and not self.may_answer.is_set():
            await asyncio.sleep(0.005)
        if leaving.done():
            self.left.set()
        leaving.cancel()
        if self.streams:
            await send({"type": "http.response.body", "body": b"data: 1\n\n"})
        elif not self.left.is_set():
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr("atom_server.connections.departure._LOOK_S", 0.02)


def read_until(client: Client, end: bytes) -> bytes:
    """What comes, up to `end` at least."""
    received = b""
    while end not in received:
        data = client.receive()
        assert data, received
        received += data
    return received


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_whoever_has_ended_its_side_is_asked_whether_it_is_there_until_it_has_its_answer(streams):
    app = Gated(streams=streams)
    asked = b"3\r\n:\n\n\r\n" if streams else b"HTTP/1.1 100 Continue\r\n\r\n"
    with serving(app) as port, HalfClosed(port) as client:
        client.send(WHOLE)
        client.end()
        received = read_until(client, asked)
        app.may_answer.set()
        received += client.rest()
    assert not app.left.is_set()
    plain = received.replace(asked, b"")
    assert plain.count(b"HTTP/1.1 200 ") == plain.count(b"HTTP/") == 1
    assert plain.endswith(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n" if streams else b"\r\n\r\n")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ends_first", [False, True], ids=["closes", "ends its side and closes"])
@pytest.mark.parametrize("ahead", [b"", WHOLE], ids=["alone", "a request ahead"])
def test_whoever_leaves_before_its_answer_is_noticed(streams, ends_first, ahead):
    app = Gated(streams=streams)
    with serving(app) as port:
        with HalfClosed(port) as client:
            client.send(WHOLE + ahead)
            if ends_first:
                client.end()
                read_until(client, b":\n\n" if streams else b"100 Continue")
        assert app.left.wait(20), "nobody told the request that its client left"


def test_whoever_only_waits_is_asked_nothing():
    app = Gated()
    with serving(app) as port, Client(port) as client:
        client.send(CLOSING)
        threading.Event().wait(0.2)  # ten times as long as until the next look
        app.may_answer.set()
        assert client.rest().count(b"HTTP/") == 1


def test_an_old_client_that_has_ended_its_side_knows_no_interim_answer_and_gets_none():
    with serving(Gated()) as port, HalfClosed(port) as client:
        client.send(b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
        client.end()
        assert client.rest() == b""
