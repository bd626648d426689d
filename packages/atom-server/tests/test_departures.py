"""Clients that leave, or end only their own side: those who read get their answers, the others are noticed at once."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from http_edge import WHOLE, plain_app, serving

UPLOAD = b"POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 400000\r\n\r\n" + b"x" * 400_000
ENDLESS = {"prompt": "once", "max_tokens": 480, "ignore_eos": True}


class Watched:
    """An app that answers after a while, unless it hears before that its client left."""

    def __init__(self, *, seconds=30.0, streams=False):
        self._seconds, self._streams = seconds, streams
        self.told: list[float] = []

    async def __call__(self, scope, receive, send):
        while (await receive())["more_body"]:
            pass
        if self._streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait({leaving}, timeout=self._seconds)
        if done:
            self.told.append(time.monotonic())
        else:
            leaving.cancel()
        if self._streams:
            await send({"type": "http.response.body", "body": b"data: 1\n\n"})
        elif not done:
            await plain_app(scope, _nothing, send)

    def seconds_since(self, left, at_most=5.0):
        while not self.told and time.monotonic() < left + at_most:
            time.sleep(0.01)
        assert self.told, "nobody told the request that its client left"
        return self.told[0] - left


async def _nothing():
    return {"type": "http.request", "body": b"", "more_body": False}


def connect(port):
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(10)
    return client


def read_to_end(client):
    parts = []
    while data := client.recv(65536):
        parts.append(data)
    return b"".join(parts)


@pytest.mark.timing
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ahead", [b"", WHOLE, UPLOAD], ids=["alone", "a request ahead", "a large body ahead"])
def test_a_client_that_closes_is_noticed_within_a_second(streams, ahead):
    app = Watched(streams=streams)
    with serving(app) as port:
        client = connect(port)
        client.sendall(WHOLE)
        time.sleep(0.1)  # what comes now is sent ahead: the server reads no more until it has answered
        client.setblocking(False)
        if ahead:
            client.send(ahead)
        time.sleep(0.1)
        client.close()
        assert app.seconds_since(time.monotonic()) < 1


@pytest.mark.timing
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_a_client_that_ends_only_its_own_side_gets_its_answer(streams):
    app = Watched(seconds=0.5, streams=streams)
    with serving(app) as port, connect(port) as client:
        client.sendall(WHOLE)
        client.shutdown(socket.SHUT_WR)
        received = read_to_end(client)
    assert app.told == []
    if streams:
        body = received.partition(b"\r\n\r\n")[2]
        assert body.endswith(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")
        assert set(body.removesuffix(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n").split(b"3\r\n:\n\n\r\n")) == {b""}
    else:
        *interim, answer = received.split(b"HTTP/1.1 ")[1:]
        assert set(interim) == {b"100 Continue\r\n\r\n"}
        assert answer.startswith(b"200 ")


@pytest.mark.timing
def test_all_that_was_asked_for_before_the_end_is_answered():
    with serving(Watched(seconds=0.2)) as port, connect(port) as client:
        client.sendall(WHOLE * 3)
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.timing
def test_a_client_that_closes_after_it_ended_its_side_is_noticed():
    app = Watched()
    with serving(app) as port:
        client = connect(port)
        client.sendall(WHOLE)
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.25)
        client.close()
        assert app.seconds_since(time.monotonic()) < 1


@pytest.mark.timing
def test_an_old_client_that_knows_no_interim_answers_gets_none():
    app = Watched(seconds=0.5)
    with serving(app) as port, connect(port) as client:
        client.sendall(b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client) == b""


@pytest.mark.timing
def test_half_a_request_is_not_waited_for():
    with serving(plain_app) as port, connect(port) as client:
        client.sendall(UPLOAD[:1000])
        client.shutdown(socket.SHUT_WR)
        started = time.monotonic()
        assert read_to_end(client) == b""
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("fields", [ENDLESS, ENDLESS | {"stream": True}, ENDLESS | {"n": 4}], ids=["", "stream", "n"])
def test_a_request_with_another_sent_ahead_is_freed_when_its_client_leaves(server, fields):
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    client = connect(int(server.url.rsplit(":", 1)[1]))
    client.sendall(head.encode() + body)
    deadline = time.monotonic() + 10
    while not server.state.active and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.state.active
    client.sendall(WHOLE)
    client.close()
    server.wait_until_idle(1.5)
