"""What a request meets before any route, part by part: pages, keys, allowances, bodies; and the store of answers."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence

import pytest
from starlette.requests import Request

from atom_core.config import ConfigError
from atom_server import ServerOptions
from atom_server.access.guard import OPEN_PATHS, ApiKeys, caller_of, needs_admin
from atom_server.access.keys import ANYBODY, Caller, KeyRing, read_key_file
from atom_server.access.rate_limits import Allowance, RateLimits
from atom_server.access.web_pages import WebPageGuard, host_name
from atom_server.errors import APIError
from clock import Clock

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
