"""Clients that send without end, or hold connections that others need: the server gives them only so much."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time

import httpx
import pytest

from atom_core.seldom import SeldomWarning
from atom_server import ServerOptions, create_app
from atom_server.connections import descriptors
from atom_server.connections.descriptors import connections_that_fit
from atom_server.connections.open_connections import OpenConnections
from http_edge import WHOLE, Client, EdgeProcess, last_answer, plain_app, serving

HEAD_BYTES, NUM_FIELDS = 64 * 1024, 128
START = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
CLOSING = START + b"connection: close\r\n\r\n"
CHUNKED = b"POST /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
ENDLESS = {
    "header lines": (START, b"a: b\r\n", 431),
    "long header lines": (START, b"a: " + b"b" * 2000 + b"\r\n", 431),
    "a header value": (START + b"a: ", b"b", 431),
    "a header name": (START, b"a", 431),
    "a URL": (b"GET /", b"a", 414),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n", 431),
    "long trailers": (CHUNKED + b"0\r\n", b"a: " + b"b" * 2000 + b"\r\n", 431),
    "a trailer's value": (CHUNKED + b"0\r\na: ", b"b", 431),
    "a chunk's extension": (CHUNKED + b"5;", b"a", 431),
    "blank lines": (b"", b"\r\n", 431),
}


@pytest.fixture(scope="module")
def edge():
    with serving(plain_app) as port:
        yield port


@pytest.fixture
def front(server):
    """``front(**options)``: another front of the shared engine; its port."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            serving(create_app(server.engine, ServerOptions(**options)), **options)
        )


def head_of(num_bytes):
    return START + b"a: " + b"b" * (num_bytes - len(START) - 7) + b"\r\n\r\n"


def head_with(num_fields):
    return START + b"".join(b"a%d: b\r\n" % index for index in range(num_fields - 1)) + b"\r\n"


def exchange(port, sent):
    with Client(port) as client:
        client.send(sent)
        return client.rest()


def error_of(answer):
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_comes_without_end_is_refused_and_the_connection_closed(edge, kind):
    start, piece, status = ENDLESS[kind]
    with Client(edge) as client:
        client.send(start + piece * (2**20 // len(piece)))
        answer = last_answer(client.rest())
    assert answer.status_code == status
    assert answer.headers["connection"] == "close"
    assert error_of(answer)["code"] in ("headers_too_large", "url_too_long")


WITH_TRAILERS = (CHUNKED, b"0\r\na: " + b"b" * 60_000 + b"\r\n\r\n")


@pytest.mark.parametrize("before", [(), (WHOLE,), WITH_TRAILERS], ids=["first", "second", "after trailers"])
def test_the_limits_are_exact_for_every_request_of_a_connection(edge, before):
    for head, status in (
        (head_of(HEAD_BYTES), 200),
        (head_of(HEAD_BYTES + 1), 431),
        (head_with(NUM_FIELDS), 200),
        (head_with(NUM_FIELDS + 1), 431),
    ):
        with Client(edge) as client:
            for packet in before:
                client.send(packet)
                time.sleep(0.02)
            if before:
                assert client.answer().status_code == 200
            client.send(head)
            assert client.answer().status_code == status


HELLO = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ASKED = b'{"prompt": "x", "max_tokens": 1}'
WHOLE_BODY = b"content-length: %d\r\n\r\n" % len(ASKED) + ASKED
IN_CHUNKS = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(ASKED) + ASKED + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("other", [b"gzip, chunked", b"identity", b"xchunked", b"chunked;a=b", b"gzip"])
def test_a_body_whose_coding_is_not_known_is_refused(edge, other):
    request = HELLO + IN_CHUNKS.replace(b"chunked", other, 1)
    answer = last_answer(exchange(edge, request))
    assert answer.status_code == 501
    assert "transfer-encoding" in error_of(answer)["message"]
    two = HELLO + b"transfer-encoding: gzip\r\n" + IN_CHUNKS
    assert last_answer(exchange(edge, two)).status_code == 501


@pytest.mark.parametrize("body", [WHOLE_BODY, IN_CHUNKS], ids=["whole", "in chunks"])
@pytest.mark.parametrize("wanted", [b"h2c", b"websocket"])
@pytest.mark.parametrize("cut", [None, 60, -60, -3])
def test_a_request_that_asks_for_another_protocol_is_answered_with_its_body(front, wanted, body, cut):
    """Java's client asks so with each of its requests."""
    request = HELLO + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + wanted + b"\r\n" + body
    with Client(front()) as client:
        for _ in range(2):
            for piece in (request[:cut], request[cut:] if cut else b""):
                client.send(piece)
                time.sleep(0.01)
            answer = client.answer()
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["prompt_tokens"] == 1


def test_headers_that_come_byte_by_byte_are_counted_as_one(edge):
    with Client(edge) as client:
        pieces = itertools.chain(itertools.repeat(b"a", 1000), itertools.repeat(b"a" * 500, 1000))
        assert client.send(START)
        assert client.send_all(pieces) < 2**20
        assert last_answer(client.rest()).status_code == 431


def test_a_large_body_is_no_matter_however_it_is_cut(edge):
    body = b"x" * 2_000_000
    request = b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    whole = request + b"content-length: %d\r\n\r\n" % len(body) + body
    tiny_chunks = request + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    assert last_answer(exchange(edge, whole)).text == "2000000"
    assert last_answer(exchange(edge, tiny_chunks)).text == "100000"


def test_requests_sent_ahead_are_answered_in_order_and_bounded(edge):
    assert exchange(edge, WHOLE * 10 + b"nonsense\r\n\r\n").count(b"HTTP/1.1 200 ") == 10
    received = exchange(edge, WHOLE * 20_000)
    assert received.count(b"HTTP/1.1 200 ") < 100
    assert last_answer(received).status_code == 429


def test_a_fault_is_told_after_the_answers_that_were_asked_for_before_it(edge):
    first = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc"
    broken = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n"
    for second in (b"nonsense\r\n\r\n", broken, START + b"a: b\r\n" * 200):
        received = exchange(edge, first + second)
        assert received.count(b"HTTP/1.1 ") == 2
        assert received.startswith(b"HTTP/1.1 200 ")
        assert last_answer(received).status_code in (400, 431)


def test_memory_stays_bounded_while_headers_come_without_end():
    with EdgeProcess() as process:
        process.get("/health")
        before, most, taken = process.resident_mb, 0.0, 0
        while taken < 24 * 2**20:
            with contextlib.ExitStack() as stack:
                for kind in ("header lines", "a header value", "a URL", "trailers"):
                    start, piece, _ = ENDLESS[kind]
                    client = stack.enter_context(Client(process.port))
                    client.send(start)
                    taken += client.send_all(itertools.repeat(piece * (60_000 // len(piece)), 100))
                most = max(most, process.resident_mb)
        assert most - before < 24
        assert process.get("/health").status_code == 200


@pytest.mark.timing
def test_large_bodies_that_come_at_once_are_bounded_together_and_small_ones_are_taken(front):
    port = front(max_body_mb=1)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    large = head + b"content-length: 1000000\r\n\r\n" + b" " * 999_000
    small = head + b"content-length: 2\r\nconnection: close\r\n\r\n{}"
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(Client(port)).send(large)
        time.sleep(0.3)
        answers = [last_answer(exchange(port, large)) for _ in range(2)]
        assert {answer.status_code for answer in answers} == {503}
        assert {error_of(answer)["code"] for answer in answers} == {"overloaded"}
        assert last_answer(exchange(port, small)).status_code == 400
    time.sleep(0.3)
    with Client(port) as client:
        client.send(large + b" " * 1000)
        assert client.answer().status_code == 400


# Connections that are held.


@pytest.mark.timing
@pytest.mark.parametrize("sent", [b"", WHOLE[:30], WHOLE + WHOLE[:8]], ids=["nothing", "half", "one and a half"])
def test_a_client_that_does_not_finish_its_headers_is_not_waited_for(sent):
    with serving(plain_app, timeout_request=0.2) as port:
        received = exchange(port, sent)
    assert received.count(b"HTTP/1.1 200 ") == sent.count(WHOLE)
    assert last_answer(received).status_code == 408
    assert error_of(last_answer(received))["code"] == "timeout"


@pytest.mark.timing
def test_an_answer_may_take_longer_than_its_request():
    async def app(scope, receive, send):
        await asyncio.sleep(0.6)
        await plain_app(scope, receive, send)

    with serving(app, timeout_request=0.1) as port:
        received = exchange(port, WHOLE + CLOSING[:-2])
    assert received.count(b"HTTP/1.1 200 ") == 1
    assert last_answer(received).status_code == 408


@pytest.mark.timing
def test_a_body_behind_a_slow_answer_is_not_late():
    async def app(scope, receive, send):
        await asyncio.sleep(0.6)
        await plain_app(scope, receive, send)

    body = b"x" * 1_000_000
    second = CLOSING.replace(b"GET", b"POST")[:-2] + b"content-length: %d\r\n\r\n" % len(body)
    with serving(app, timeout_request=0.2) as port:
        received = exchange(port, WHOLE + second + body)
    assert received.count(b"HTTP/1.1 200 ") == 2


BODY = b"content-length: 10000000\r\ncontent-type: application/json\r\nhost: localhost\r\n\r\n{"
EARLY = {
    404: (b"POST /nothing HTTP/1.1\r\n" + BODY, {}),
    401: (b"POST /v1/completions HTTP/1.1\r\n" + BODY, {"api_key": "key"}),
    413: (b"POST /v1/completions HTTP/1.1\r\n" + BODY, {"max_body_mb": 1}),
    408: (b"POST /v1/completions HTTP/1.1\r\n" + BODY, {}),
    405: (b"GET /v1/completions HTTP/1.1\r\n" + BODY, {}),
}


@pytest.mark.timing
@pytest.mark.parametrize("status", EARLY)
def test_after_an_early_answer_the_connection_is_closed(front, status):
    request, options = EARLY[status]
    with Client(front(timeout_request=0.4, **options)) as client:
        client.send(request)
        answer = client.answer()
        assert answer.status_code == status
        assert answer.headers["connection"] == "close"
        assert error_of(answer)["message"]
        assert client.seconds_until_closed(5, sending=b" ") < 3


def test_whoever_is_refused_early_and_goes_on_sending_sees_the_answer(front):
    url = f"http://127.0.0.1:{front(max_body_mb=1)}/v1/completions"
    for _ in range(3):
        for content in (b" " * 12_000_000, iter([b" " * 1_000_000] * 12)):
            answer = httpx.post(url, content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 413


def test_what_is_sent_after_an_early_answer_is_taken_for_a_while(edge):
    with Client(edge) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30000000\r\n\r\n" + b"x" * 200_000)
        assert client.answer().status_code == 200
        assert client.send_all(itertools.repeat(b"x" * 500_000, 50), pause=0.01) == 25_000_000


def test_only_so_much_is_read_after_an_early_answer(edge):
    with Client(edge) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000000000\r\n\r\n")
        assert client.answer().status_code == 200
        assert client.send_all(itertools.repeat(b"x" * 2**20, 200)) < 100 * 2**20


def test_a_whole_request_keeps_its_connection_whatever_the_answer(front):
    port = front()
    with Client(port) as client:
        for _ in range(3):
            client.send(b"POST /nothing HTTP/1.1\r\n" + BODY.replace(b"10000000", b"1"))
            assert client.answer().status_code == 404
            client.send(WHOLE)
            assert client.answer().status_code == 200


@pytest.mark.timing
def test_blank_lines_do_not_keep_an_idle_connection():
    with serving(plain_app, timeout_keep_alive=1) as port, Client(port) as client:
        client.send(WHOLE)
        assert client.answer().status_code == 200
        assert 0.5 < client.seconds_until_closed(10, sending=b"\r\n") < 5


def endless_app(num_blocks, *, num_bytes=2**18):
    """Sends so many blocks."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(num_blocks):
            await send({"type": "http.response.body", "body": bytes(num_bytes), "more_body": True})
        await send({"type": "http.response.body"})

    return app


@pytest.mark.timing
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off():
    with serving(endless_app(400), timeout_request=0.3) as port, Client(port, receive_buffer=4096) as client:
        client.send(WHOLE)
        time.sleep(2)
        assert len(client.rest()) < 100 * 2**20


@pytest.mark.timing
def test_a_client_that_reads_slowly_gets_everything():
    with (
        serving(endless_app(1, num_bytes=2**25), timeout_request=1) as port,
        Client(port, receive_buffer=2**18) as client,
    ):
        client.send(CLOSING)
        size = 0
        while data := client.receive(2**19):
            size += len(data)
            time.sleep(0.02)
    assert size > 2**25


# Too many connections.


@pytest.mark.timing
def test_silent_connections_make_room_for_those_that_ask():
    with serving(plain_app, max_connections=8) as port, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Client(port)) for _ in range(30)]
        for client in silent[-8:]:
            client.send(WHOLE)
            assert client.answer().status_code == 200
        for _ in range(3):
            assert exchange(port, CLOSING).startswith(b"HTTP/1.1 200 ")
        assert all(client.seconds_until_closed(2) < 1 for client in silent[:20])


@pytest.mark.timing
def test_clients_that_leave_before_their_answer_make_room():
    async def app(scope, receive, send):
        while scope["path"] == "/health" and (await receive())["type"] != "http.disconnect":
            pass
        await plain_app(scope, receive, send)

    with serving(app, max_connections=2) as port:
        for _ in range(5):
            with Client(port) as client:
                client.send(WHOLE)
                time.sleep(0.05)
            time.sleep(0.05)
        assert last_answer(exchange(port, CLOSING.replace(b"/health", b"/early"))).status_code == 200


@pytest.mark.timing
def test_a_request_with_others_behind_it_learns_that_its_client_left():
    told = []

    async def app(scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            pass
        told.append(message["type"])
        await plain_app(scope, receive, send)

    with serving(app) as port:
        with Client(port) as client:
            client.send(WHOLE * 3)
            time.sleep(0.1)
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.02)
    assert told == ["http.disconnect"]


@pytest.mark.timing
def test_where_all_connections_are_being_answered_the_next_is_refused():
    release = asyncio.Event()

    async def app(scope, receive, send):
        await release.wait()
        await plain_app(scope, receive, send)

    with serving(app, max_connections=2) as port, Client(port) as one, Client(port) as two:
        one.send(WHOLE)
        two.send(WHOLE)
        time.sleep(0.2)
        for _ in range(3):
            answer = last_answer(exchange(port, WHOLE))
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert error_of(answer)["code"] == "too_many_connections"
        release._loop.call_soon_threadsafe(release.set)
        assert one.answer().status_code == 200
        assert two.answer().status_code == 200


def test_with_few_descriptors_held_connections_do_not_end_the_service():
    with EdgeProcess(max_files=64) as process, contextlib.ExitStack() as stack:
        for start in (b"", START, CHUNKED, WHOLE) * 20:
            stack.enter_context(Client(process.port)).send(start)
        assert process.get("/health").status_code == 200
        assert "takes at most" in process.end()


@pytest.mark.timing
def test_without_descriptors_the_log_says_so_once():
    with EdgeProcess(max_files=64) as process, Client(process.port) as client:
        client.send(WHOLE.replace(b"/health", b"/exhaust"))
        time.sleep(2.5)
        [line] = [line for line in process.end().splitlines() if "descriptor" in line or "dropped" in line]
        assert "ulimit -n is 64" in line


@pytest.mark.timing
def test_a_warning_that_clients_cause_is_seldom(caplog, monkeypatch):
    monkeypatch.setattr("atom_core.seldom.INTERVAL_S", 0.2)
    warn = SeldomWarning(logging.getLogger("atom_server.test"))
    for _ in range(1000):
        warn("again")
    time.sleep(0.3)
    warn("again")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["again", "again (999 more times since the last such line)"]


def test_a_first_warning_is_told_at_once_on_a_machine_that_has_just_started(caplog, monkeypatch):
    monkeypatch.setattr("atom_core.seldom.time.monotonic", lambda: 0.0)
    SeldomWarning(logging.getLogger("atom_server.test"))("no room")
    assert [record.getMessage() for record in caplog.records] == ["no room"]


def test_a_full_server_says_so_and_which_flag_it_is(caplog):
    connections = OpenConnections(1)
    asks, comes = object(), object()
    assert connections.add(asks)
    assert not caplog.records
    connections.set_works(asks, works=True)
    assert not connections.add(comes)
    assert "there are 1 connections, as many as may be (--max-connections): refused" in caplog.text


@pytest.mark.parametrize(("limit", "told"), [(10**6, False), (100, True)])
def test_fewer_connections_than_wanted_are_told(caplog, monkeypatch, limit, told):
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda kind: (limit, limit))
    assert (connections_that_fit(1000) < 1000) is told
    assert ("instead of 1000" in caplog.text) is told
