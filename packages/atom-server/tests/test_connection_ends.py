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
