"""What requests are counted by: bodies that were refused are forgotten, trailers are counted and not read."""

from __future__ import annotations

import pytest

from atom_server.bodies.memory import BodyMemory
from atom_server.errors import APIError
from atom_server.generation.tallies import Tallies
from http_edge import Client, last_answer, serving

PIECE = b"x" * (1 << 20)
CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"


async def reading_app(scope, receive, send):
    """Reads to the end of the body."""
    while (await receive())["more_body"]:
        pass


async def refusing_app(scope, receive, send):
    """Refuses a body in the middle."""
    await receive()
    await receive()
    raise APIError(413, "too large")


async def run(memory, num_pieces):
    pieces = iter(range(num_pieces, -1, -1))

    async def receive():
        return {"type": "http.request", "body": PIECE, "more_body": next(pieces) > 0}

    await memory({"type": "http", "method": "POST", "path": "/"}, receive, None)


async def test_a_body_that_was_refused_is_forgotten():
    memory = BodyMemory(refusing_app, most_bytes=8 << 20)
    for _ in range(10):
        with pytest.raises(APIError, match="too large"):
            await run(memory, 5)
    memory._app = reading_app
    await run(memory, 7)


async def test_a_body_beyond_what_all_may_hold_is_refused():
    with pytest.raises(APIError, match="too many large requests"):
        await run(BodyMemory(reading_app, most_bytes=8 << 20), 20)


@pytest.mark.parametrize(("size", "is_taken"), [(64 * 1024, True), (64 * 1024 + 1, False)])
async def test_a_body_of_64_kib_is_taken_however_much_others_send(size, is_taken):
    pieces = iter([b"x" * size, b""])

    async def receive():
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    reading = BodyMemory(reading_app, most_bytes=0)({"type": "http", "method": "POST", "path": "/"}, receive, None)
    if is_taken:
        await reading
    else:
        with pytest.raises(APIError, match="too many large requests"):
            await reading


@pytest.fixture
def names():
    """Names of headers, as an app that has read the whole body finds them."""
    return []


@pytest.fixture
def port(names):
    async def app(scope, receive, send):
        await reading_app(scope, receive, send)
        names.extend(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with serving(app) as port:
        yield port


def answer_to(port, num_headers, num_trailers):
    headers = b"".join(b"h%d: 1\r\n" % number for number in range(num_headers))
    trailers = b"".join(b"t%d: 1\r\n" % number for number in range(num_trailers))
    with Client(port) as client:
        client.send(CHUNKED + headers + b"\r\n5\r\nhello\r\n0\r\n" + trailers + b"\r\n")
        return last_answer(client.rest())


def test_trailers_are_never_headers(port, names):
    assert answer_to(port, 2, 3).status_code == 200
    assert names == [b"host", b"connection", b"transfer-encoding", b"h0", b"h1"]


@pytest.mark.parametrize(("num_headers", "num_trailers"), [(100, 25), (25, 100), (125, 0)])
def test_headers_and_trailers_are_counted_together(port, num_headers, num_trailers):
    assert answer_to(port, num_headers, num_trailers).status_code == 200
    refused = answer_to(port, num_headers, num_trailers + 1)
    assert refused.status_code == 431
    assert "more than 128 headers" in refused.json()["error"]["message"]


class News:
    """What `Tallies` reads of a sample's news."""

    finish_reason = None
    num_draft_tokens = num_accepted_tokens = 0

    def __init__(self, num_output_tokens, ttft, latency, queued=0.0):
        self.num_output_tokens, self.ttft, self.latency, self.queued = num_output_tokens, ttft, latency, queued


def test_the_first_token_of_several_samples_is_that_of_the_quickest():
    tallies = Tallies(3)
    tallies.count(0, News(1, 0.5, 0.5, queued=0.3))
    tallies.count(1, News(1, 0.2, 0.6, queued=0.1))
    tallies.count(2, News(1, 0.7, 0.7, queued=0.4))
    assert (tallies.ttft, tallies.queued) == (0.2, 0.1)
    tallies.count(0, News(2, 0.5, 0.9))
    assert (tallies.ttft, tallies.latency) == (0.2, 0.9)
