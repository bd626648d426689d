"""What a request meets before any route, part by part: pages, keys, allowances, bodies; and the store of answers."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, field_validator
from starlette.requests import Request

from atom_core.config import ConfigError
from atom_server import ServerOptions
from atom_server.access.guard import OPEN_PATHS, ApiKeys, caller_of, needs_admin
from atom_server.access.keys import ANYBODY, Caller, KeyRing, read_key_file
from atom_server.access.rate_limits import Allowance, RateLimits
from atom_server.bodies import body as bodies
from atom_server.bodies.body import (
    IGNORED_FIELDS,
    decode_json_object,
    ignored_header,
    naming_ignored,
    parse_object,
    quoted,
    read_body,
)
from atom_server.bodies.decoding_cost import MAX_VALUES, DecodingCost
from atom_server.bodies.memory import BodyMemory
from atom_server.errors import APIError
from atom_server.responses import store as stores
from atom_server.responses.store import ResponseStore, StoredResponse
from atom_server.web_pages import WebPageGuard, host_name

Headers = dict[str, str]


def refusal_of(call, *arguments, **options) -> APIError:
    with pytest.raises(APIError) as caught:
        call(*arguments, **options)
    return caught.value


class Reached:
    """An app that notes which requests reach it."""

    def __init__(self) -> None:
        self.scopes: list[dict] = []

    async def __call__(self, scope, receive, send) -> None:
        self.scopes.append(scope)


async def answer_of(guard, method="POST", path="/v1/completions", headers: Sequence[tuple[str, str]] = (), kind="http"):
    """The status and the error that a guard answers with, None where the request reached the app behind it."""
    sent: list[dict] = []

    async def send(message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    await guard({"type": kind, "method": method, "path": path, "headers": raw}, None, send)
    if not sent:
        return None
    error = json.loads(sent[1]["body"])["error"]
    return sent[0]["status"], error["code"], error["message"], dict(sent[0]["headers"])


# Web pages.

HOST, JSON = ("host", "localhost:8000"), ("content-type", "application/json")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([HOST, JSON], None),
        ([("host", "127.0.0.1"), JSON], None),
        ([("host", "[::1]:80"), JSON], None),
        ([("host", "MY.example:1"), JSON], None),
        ([("host", "evil.example"), JSON], "host_not_allowed"),
        ([HOST, HOST, JSON], "host_not_allowed"),
        ([JSON], "host_not_allowed"),
        ([("host", "localhost:x"), JSON], "host_not_allowed"),
        ([HOST, JSON, ("sec-fetch-site", "same-origin")], None),
        ([HOST, JSON, ("sec-fetch-site", "none")], None),
        ([HOST, JSON, ("sec-fetch-site", "cross-site")], "origin_not_allowed"),
        ([HOST, JSON, ("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")], None),
        ([HOST, JSON, ("origin", "http://LOCALHOST:8000")], None),
        ([HOST, JSON, ("origin", "http://localhost:8001")], "origin_not_allowed"),
        ([HOST, JSON, ("origin", "null")], "origin_not_allowed"),
    ],
)
async def test_a_page_of_another_site_reaches_nothing(headers, code):
    app = Reached()
    answer = await answer_of(WebPageGuard(app, ["my.EXAMPLE"]), headers=headers)
    assert (answer and answer[:2]) == (code and (403, code))
    assert len(app.scopes) == (code is None)


async def test_what_is_refused_to_a_page_is_told():
    guard = WebPageGuard(Reached(), ["b.example", "a.example"])
    *_, message, _ = await answer_of(guard, headers=[("host", "evil"), JSON])
    assert message == (
        "this server takes requests for localhost, a.example, b.example only; the Host header says "
        '"evil". --allowed-hosts names further ones'
    )
    *_, message, _ = await answer_of(guard, headers=[HOST, JSON, ("origin", "http://evil")])
    assert message == 'web pages of other sites cannot use this server; this one is of "http://evil"'
    *_, message, _ = await answer_of(guard, headers=[HOST, JSON, ("sec-fetch-site", "cross-site")])
    assert message.endswith('this one is of "cross-site"')


async def test_probes_and_what_is_no_request_are_let_through():
    guard = WebPageGuard(Reached(), [])
    assert {"/health", "/ready"} == OPEN_PATHS
    for path in OPEN_PATHS:
        assert await answer_of(guard, path=path, headers=[("host", "evil")]) is None
    assert await answer_of(guard, kind="lifespan") is None
    any_host = WebPageGuard(Reached(), None)
    assert await answer_of(any_host, headers=[("host", "evil"), JSON]) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_what_changes_nothing_needs_no_type_and_may_come_from_any_page(method):
    headers = [HOST, ("origin", "http://evil"), ("content-length", "5")]
    assert await answer_of(WebPageGuard(Reached(), []), method, headers=headers) is None


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([], None),
        ([("content-length", "0")], None),
        ([("content-length", " 0 ")], None),
        ([("content-length", "1")], "the body has no type"),
        ([("transfer-encoding", "chunked")], "the body has no type"),
        ([("content-length", "0"), ("transfer-encoding", "chunked")], "the body has no type"),
        ([("content-length", "1"), ("content-type", "text/plain; charset=utf-8")], 'the body is of type "text/plain"'),
        ([("content-length", "1"), ("content-type", " Application/JSON ; charset=utf-8")], None),
        ([("content-length", "1"), ("content-type", "application/vnd.api+json")], None),
        ([("content-length", "1"), ("content-type", "application/json5")], 'the body is of type "application/json5"'),
    ],
)
async def test_a_body_is_json(headers, told):
    answer = await answer_of(WebPageGuard(Reached(), []), headers=[HOST, *headers])
    if told is None:
        assert answer is None
    else:
        expected = f"{told}; send JSON, with the header 'Content-Type: application/json' (curl: -H)"
        assert (answer[0], answer[2]) == (415, expected)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        *[("Localhost:80", "localhost"), ("[::1]:5", "::1"), ("a.b", "a.b"), ("a%b", None), ("[fe80::1%eth0]", None)],
        *[("a@b", None), ("a/b", None), ("a:b", None), ("a?b", None), ("", None), ("a:70000", None)],
    ],
)
def test_the_name_in_a_host_header(host, name):
    assert host_name(host) == name


# Keys.


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


async def test_a_request_without_a_known_key_is_told_how_to_send_one():
    app = Reached()
    guard = ApiKeys(app, KeyRing.of(ServerOptions(api_key="one,two", admin_key="root")), open_paths=["/open"])
    for headers in ([], bearer("three"), [("authorization", "Basic one")], [("x-api-key", "three")]):
        status, code, message, sent = await answer_of(guard, headers=headers)
        assert (status, code) == (401, "invalid_api_key")
        assert message == "a valid API key is required: send it as 'Authorization: Bearer <key>'"
        assert sent[b"www-authenticate"] == b"Bearer"
        assert await answer_of(guard, path="/open", headers=headers) is None
    assert not any("caller" in scope.get("state", {}) for scope in app.scopes)
    app.scopes.clear()
    for headers in (bearer("one"), [("authorization", "bearer  one ")], [("x-api-key", " one")]):
        assert await answer_of(guard, headers=headers) is None
    # The header that names no bearer leaves the other to speak.
    assert await answer_of(guard, headers=[("authorization", "Basic x"), ("x-api-key", "one")]) is None
    assert await answer_of(guard, headers=[*bearer("x"), ("x-api-key", "one")]) is not None
    names = {scope["state"]["caller"].name for scope in app.scopes}
    assert names == {"key-" + hashlib.sha256(b"one").hexdigest()[:12]}
    assert await answer_of(guard, kind="lifespan") is None


async def test_admin_routes_are_for_the_administrator():
    def request_of(caller: Caller) -> Request:
        return Request({"type": "http", "state": {"caller": caller}})

    assert caller_of(request_of(Caller("a"))) == Caller("a")
    assert caller_of(Request({"type": "http"})) is ANYBODY
    await needs_admin(Request({"type": "http"}))
    await needs_admin(request_of(Caller("root", is_admin=True)))
    with pytest.raises(APIError) as caught:
        await needs_admin(request_of(Caller("a", is_admin=False)))
    assert (caught.value.status, caught.value.code) == (403, "admin_key_required")
    assert "--admin-key (or ATOM_ADMIN_KEY)" in caught.value.message


def test_a_key_alone_is_no_tenant_and_has_no_salt():
    (only,) = KeyRing.of(ServerOptions(api_key="one"))._callers
    assert (only.tenant, only.salt, only.is_admin) == ("", b"", False)
    assert only.cache_salt("mine") == "mine"
    one, two = KeyRing.of(ServerOptions(api_key="one,two"))._callers
    assert (one.tenant, two.tenant) == (one.name, two.name)
    assert len({one.salt, two.salt, b""}) == 3
    assert one.cache_salt("") != two.cache_salt("")
    assert one.cache_salt("a") != one.cache_salt("b")
    assert len(one.cache_salt("")) == 64
    shared, _ = KeyRing.of(ServerOptions(api_key="one,two", share_prefixes=True))._callers
    assert (shared.tenant, shared.salt) == (shared.name, b"")
    assert (Caller().name, Caller().is_admin, Caller().tenant, Caller().salt) == ("", True, "", b"")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([("a", b"1"), ("b", b"2"), ("a", b"3")], "two keys have the name 'a': give each its own"),
        ([("a", b"1"), ("b", b"2"), ("c", b"1")], "'a' and 'c' are one key: give each its own"),
    ],
)
def test_keys_that_are_given_twice_are_named(keys, told):
    with pytest.raises(ConfigError) as caught:
        KeyRing(keys)
    assert str(caught.value) == told


@pytest.mark.parametrize("line", ["a b c", "b@d key", "admin key", "x" * 65 + " key", "kéy", "name kéy"])
def test_a_bad_line_of_a_key_file_is_told_by_its_number(tmp_path, line):
    path = tmp_path / "keys"
    path.write_text(f"# keys\ngood key\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert str(caught.value) == (
        f"api_key_file {str(path)!r}, line 3: must be a key, or a name (letters, digits, _ . -, not 'admin') and a "
        "key of printable ASCII"
    )


def test_a_key_file_of_digests_may_be_read_by_others(tmp_path, caplog):
    path = tmp_path / "keys"
    digest = hashlib.sha256(b"one").hexdigest()
    path.write_text(f"{'x' * 64} sha256:{digest.upper()}  # a remark\n\nsha256:{digest[:-1]}\n")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        (name, found), (other, no_digest) = read_key_file(path)
    assert not caplog.records
    assert (name, found) == ("x" * 64, hashlib.sha256(b"one").digest())
    assert no_digest == hashlib.sha256(f"sha256:{digest[:-1]}".encode()).digest()
    assert other == "key-" + no_digest.hex()[:12]
    for mode, is_told in ((0o640, True), (0o604, True), (0o600, False)):
        caplog.clear()
        path.write_text("key")
        path.chmod(mode)
        with caplog.at_level(logging.WARNING):
            read_key_file(path)
        assert bool(caplog.records) is is_told
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key: write one in each line"):
        read_key_file(path)


# Allowances.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_fills_evenly_and_may_be_overdrawn():
    clock = Clock()
    allowance = Allowance(120, clock)
    assert (allowance.per_minute, allowance.seconds_until(120)) == (120, 0.0)
    allowance.spend(100)
    assert allowance.seconds_until(20) == 0.0
    assert allowance.seconds_until(21) == 0.5
    assert allowance.seconds_until(10**9) == 50.0
    allowance.spend(40)
    assert allowance.seconds_until(0) == 10.0
    clock.now = 10.0
    assert allowance.seconds_until(0) == 0.0
    assert allowance.seconds_until(1) == 0.5
    clock.now = 1000.0
    assert allowance.seconds_until(120) == 0.0
    allowance.spend(120)
    assert allowance.seconds_until(120) == 60.0


def test_who_has_used_it_up_is_told_what_and_when_to_try_again():
    clock = Clock()
    rates = RateLimits(requests=2, tokens=600, clock=clock)
    caller = Caller("a")
    rates.take_request(caller)
    rates.take_request(caller)
    error = refusal_of(rates.take_request, caller)
    assert (error.status, error.code, error.headers) == (429, "rate_limit_exceeded", {"retry-after": "30"})
    assert error.message == "this key may use 2 requests a minute: try again in 30 s"
    rates.take_prompt(caller, 595)
    error = refusal_of(rates.take_prompt, caller, 6)
    assert error.message == "this key may use 600 tokens a minute: try again in 1 s"
    rates.take_output(caller, 15)
    assert refusal_of(rates.take_request, caller).message == "this key may use 600 tokens a minute: try again in 2 s"
    rates.take_prompt(Caller("b"), 600)


# Bodies.


def request_with(body: bytes, *pieces: bytes, headers: Headers | None = None) -> Request:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in (body, *pieces)]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    async def receive():
        return messages.pop(0)

    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


async def test_a_body_may_have_as_many_bytes_as_are_allowed():
    assert await read_body(request_with(b"ab", b"cd"), 4) == b"abcd"
    told = "the body is larger than 4 bytes; --max-body-mb sets the limit"
    for request in (
        request_with(b"ab", b"cde"),
        request_with(b"", headers={"content-length": "5"}),
    ):
        with pytest.raises(APIError) as caught:
            await read_body(request, 4)
        assert (caught.value.status, caught.value.message) == (413, told)
    for length in ("4", "x", "9" * 20, "-5"):
        assert await read_body(request_with(b"a", headers={"content-length": length}), 4) == b"a"
    with pytest.raises(APIError, match="larger than 4 bytes"):
        await read_body(request_with(b"", headers={"content-length": "9" * 19}), 4)


async def test_a_body_is_counted_by_what_takes_long_to_decode():
    with pytest.raises(APIError) as caught:
        await read_body(request_with(b"," * MAX_VALUES, b"," * 1025), 10**9)
    assert caught.value.message == (
        f"the body holds more than {MAX_VALUES} values, names, escapes and long numbers; send several requests"
    )
    assert MAX_VALUES == 524_288


async def test_a_client_that_leaves_while_it_sends_is_noted():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(APIError) as caught:
        await read_body(Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive), 4)
    assert (caught.value.status, caught.value.message) == (499, "the client went away")
    assert caught.value.code == "client_closed_request"


@pytest.mark.parametrize(
    ("piece", "values"),
    [
        *[(b"1, 2", 1), (b"[", 1), (b"{", 1), (b"\\n", 0.25), (b'"a": 1', 4), (b'"a" :1', 1)],
        *[(b"1" * 19, 0), (b"9" * 20, 8), (b"7" * 40, 16), (b"text", 0)],
    ],
)
def test_what_a_piece_of_a_body_costs(piece, values):
    cost = DecodingCost()
    most = MAX_VALUES + 1024
    cost.add(b"," * int(most - values))
    cost.add(piece)
    cost.add(b"\\" * int(4 * (most - values - int(most - values))))
    with pytest.raises(APIError) as caught:
        cost.add(b"\\")
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (b" \n", "invalid_json", "the body is empty; send a JSON object"),
        (b"[1]", "invalid_json", "the body must be a JSON object, not an array"),
        (b'"a"', "invalid_json", "the body must be a JSON object, not a string"),
        (b"true", "invalid_json", "the body must be a JSON object, not a boolean"),
        (b"null", "invalid_json", "the body must be a JSON object, not null"),
        (b"5", "invalid_json", "the body must be a JSON object, not a number"),
        (b'{"a": "\xff"}', "invalid_utf8", "the body is not valid UTF-8: bad byte at offset 7"),
        ('{"é": x}'.encode(), "invalid_json", "the body is not valid JSON: expecting value at byte 7"),
        (b'{"a": NaN}', "invalid_json", "the body is not valid JSON: NaN is not a number in JSON at byte 6"),
        (b'{"a": ' + b"[" * 100_000, "invalid_json", "the body is not valid JSON: it is nested too deeply"),
        (
            b'{"a": 1e999}',
            "invalid_json",
            "the body is not valid JSON: it holds half of a surrogate pair, or a number too large",
        ),
    ],
    ids=lambda one: str(one)[:30],
)
def test_what_is_wrong_with_a_json_text_is_told(text, code, told):
    error = refusal_of(decode_json_object, text)
    assert (error.status, error.code, error.message) == (400, code, told)


def test_a_long_text_is_not_gone_through_a_second_time():
    for size, explains in ((2**20, True), (2**20 + 1, False)):
        text = b'{"a": x}'.ljust(size)
        message = refusal_of(decode_json_object, text).message
        assert message.startswith("the body is not valid JSON: ")
        assert message.endswith("expecting value at byte 6") is explains
    assert decode_json_object(b'{"a": [1]}') == {"a": [1]}


class Fields(BaseModel):
    number: int
    items: list[dict[str, str]] | None = None
    either: list[int] | str | None = None
    word: str | None = None
    also_accepted: ClassVar[frozenset[str]] = frozenset({"known"})

    @field_validator("word")
    @classmethod
    def _short(cls, word: str | None) -> str | None:
        if word == "bad":
            raise ValueError("bad words are not taken")
        return word


@pytest.mark.parametrize(
    ("values", "param", "code", "told"),
    [
        ({}, "number", "missing_required_parameter", "'number' is required"),
        ({"number": None}, "number", "missing_required_parameter", "'number' is required"),
        (
            {"number": [1]},
            "number",
            "invalid_type",
            "'number' must be a valid integer; got [1]",
        ),
        (
            {"number": 1, "items": [{"a": "x"}, {"b": 5}]},
            "items[1].b",
            "invalid_type",
            "'items[1].b' must be a valid string; got 5",
        ),
        ({"number": 1, "word": "bad"}, "word", "invalid_value", "'word': bad words are not taken; got \"bad\""),
        ({"number": [], "word": "bad"}, "number", "invalid_type", "(and 1 more)"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_field_that_cannot_be_is_told_by_its_path(values, param, code, told):
    error = refusal_of(parse_object, Fields, values)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert told in error.message


def test_fields_that_are_not_known_are_named_and_too_many_refused():
    body, ignored = parse_object(Fields, {"number": 1, "x": 2, "known": 3, "y": None})
    assert (body.number, ignored) == (1, ["x"])
    most = {"number": 1} | {f"x{n}": n for n in range(1023)}
    assert len(parse_object(Fields, most)[1]) == 1023
    error = refusal_of(parse_object, Fields, most | {"one more": 1})
    assert error.message == "the body has 1025 fields; at most 1024 are read"


def test_the_header_of_ignored_fields_holds_harmless_names_and_no_more_than_sixteen():
    assert ignored_header([]) == {}
    assert ignored_header(["a", "b-c.d_1"]) == {IGNORED_FIELDS: "a, b-c.d_1"}
    assert ignored_header(["a", "b\r\nc", "x" * 65]) == {IGNORED_FIELDS: "a, ..."}
    assert ignored_header(["x" * 64]) == {IGNORED_FIELDS: "x" * 64}
    names = [f"n{n}" for n in range(17)]
    assert ignored_header(names[:16]) == {IGNORED_FIELDS: ", ".join(names[:16])}
    assert ignored_header(names) == {IGNORED_FIELDS: ", ".join(names[:16]) + ", ..."}
    given = {"x": "y"}
    assert naming_ignored(given, []) == given
    assert naming_ignored(given, []) is not given
    assert naming_ignored(given, ["a"], {"a": "b"}) == {"x": "y", IGNORED_FIELDS: "b"}
    assert naming_ignored({IGNORED_FIELDS: "c"}, ["a", "d"], {"a": "b"}) == {IGNORED_FIELDS: "c, b, d"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", '"é"'),
        ("x" * 58, '"' + "x" * 58 + '"'),
        ("x" * 59, '"' + "x" * 56 + "..."),
        ("x" * 1000, '"' + "x" * 56 + "..."),
        ([1] * 20, json.dumps([1] * 20)),
        ([1] * 21, json.dumps([1] * 21)[:57] + "..."),
        ({"a": {1, 2}}, "{'a': {1, 2}}"),
        (None, "null"),
    ],
    ids=lambda one: str(one)[:20],
)
def test_a_value_is_quoted_in_at_most_sixty_characters(value, text):
    assert quoted(value) == text
    assert len(quoted(value)) <= 60 == bodies._LONGEST_QUOTE


async def test_bodies_are_counted_together_while_they_come():
    held: list[int] = []
    size = 40_000

    async def app(scope, receive, send) -> None:
        while (message := await receive()).get("more_body"):
            held.append(memory._num_bytes)
        assert message["type"] == "http.request"
        held.append(memory._num_bytes)

    memory = BodyMemory(app, most_bytes=3 * size)

    def coming(*pieces: bytes):
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages.append({"type": "http.request", "body": b"", "more_body": False})

        async def receive():
            return messages.pop(0)

        return receive

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/"}
    await memory(scope, coming(b"x" * size, b"x" * size, b"x" * size), None)  # type: ignore[arg-type]
    assert held == [size, 2 * size, 3 * size, 0]
    with pytest.raises(APIError) as caught:
        await memory(scope, coming(b"x" * size, b"x" * size, b"x" * size, b"x"), None)  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.code, caught.value.headers) == (503, "overloaded", {"retry-after": "1"})
    assert caught.value.message == "too many large requests are on their way; send this one again later"
    assert memory._num_bytes == 0
    held.clear()
    for passed in ({"type": "http", "method": "GET", "path": "/"}, {"type": "lifespan", "method": "x"}):
        await memory(passed, coming(b"x" * 9 * size), None)  # type: ignore[arg-type]
    assert held == [0, 0, 0, 0]


# What is stored of answers.


def stored(name: str, *, status="completed", text="x", owner="") -> StoredResponse:
    output = [{"type": "message", "content": [{"text": text}]}]
    return StoredResponse({"id": name, "status": status, "output": output}, [{"role": "user"}], owner=owner)


def test_a_store_is_bounded_by_numbers_and_by_characters():
    assert (stores.MAX_RESPONSES, stores.MAX_CHARACTERS) == (1024, 67_108_864)
    assert stored("a", text="xyz").size == len("messagexyz") + len("user")
    assert stored("a").conversation == [{"role": "user"}, *stored("a").response["output"]]
    each = stored("a").size
    store = ResponseStore(max_responses=10, max_characters=3 * each)
    for name in "abc":
        store.put(stored(name))
    assert len(store) == 3
    store.put(stored("d"))
    assert [store.get(name) is not None for name in "abcd"] == [False, True, True, True]
    assert store._num_characters == 3 * each
    store.put(stored("d", text="xx"))
    assert [store.get(name) is not None for name in "bcd"] == [False, True, True]
    for name in "cd":
        store.remove(name)
    assert (len(store), store._num_characters) == (0, 0)


@pytest.mark.parametrize(("status", "runs"), [("queued", True), ("in_progress", True), ("completed", False)])
def test_a_response_runs_until_it_has_ended(status, runs):
    assert stored("a", status=status).is_running is runs


def test_who_makes_too_many_responses_at_once_is_told():
    store = ResponseStore(max_responses=9, max_running=3)
    store.put(stored("a", status="queued", owner="one"))
    store.put(stored("b", status="queued", owner="two"))
    error = refusal_of(store.put, stored("c", status="queued", owner="two"))
    told = "2 responses are being made in the background already (at most 3 may be): try again later"
    assert (error.status, error.code, error.message, error.headers) == (503, "queue_full", told, {"retry-after": "1"})
    store.put(stored("c", status="queued", owner="three"))
    assert refusal_of(store.put, stored("d", status="queued", owner="four")).status == 503
    store.put(stored("d", owner="four"))
    assert ResponseStore(max_responses=2, max_running=5)._max_running == 2


def test_what_is_not_found_is_told_with_the_beginning_of_its_id():
    error = refusal_of(ResponseStore().find, "x" * 200)
    assert error.message == f"there is no response {'x' * 128!r}: it was not stored, was deleted, or made room"
    assert (error.status, error.param, error.code) == (404, "response_id", "response_not_found")


def test_whoever_takes_the_largest_share_makes_room():
    store = ResponseStore(max_responses=4, max_characters=10_000)
    for name, owner, text in (("a", "many", "x"), ("b", "many", "x"), ("c", "long", "x" * 9000), ("d", "few", "x")):
        store.put(stored(name, owner=owner, text=text))
    store.put(stored("e", owner="few"))
    assert store.get("c", "long") is None  # nine tenths of the characters are more than half of the places
    store.put(stored("f", owner="few", status="queued"))
    assert [store.get(name, owner) is not None for name, owner in (("a", "many"), ("b", "many"), ("d", "few"))] == [
        True,
        True,
        False,
    ]
