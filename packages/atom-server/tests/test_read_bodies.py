"""Bodies part by part: their size, what they cost, their JSON, their fields, and how they are quoted."""

from __future__ import annotations

import gc
import json
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, field_validator
from starlette.requests import Request

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

Headers = dict[str, str]


def refusal_of(call, *arguments, **options) -> APIError:
    with pytest.raises(APIError) as caught:
        call(*arguments, **options)
    return caught.value


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
        *[(b"1, 2", 1), (b"[", 3), (b"{", 2), (b"\\n", 0.25), (b'"a": 1', 4), (b'"a" \t\r\n:1', 4)],
        *[(b"1" * 19, 0), (b"9" * 20, 8), (b"7" * 40, 16), (b"text: more", 0), (b'"a"', 0)],
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


@pytest.mark.parametrize(("mark", "values"), [(b"[", 3), (b"{", 2), (b'":', 4), (b",", 1)])
def test_a_body_is_refused_at_the_mark_that_is_too_many_in_however_small_pieces(mark, values):
    cost, most = DecodingCost(), (MAX_VALUES + 1024) // values
    for start in range(0, most, 1000):
        cost.add(mark * min(1000, most - start))
    with pytest.raises(APIError):
        cost.add(mark)


@pytest.mark.parametrize(
    ("piece", "values"), [('"é"'.encode() * 12, 24), (rb'"\u00e9"' * 6, 13.5), (b"a" * 46 + "é".encode(), 0)]
)
def test_with_other_characters_than_ascii_quotes_count_and_so_does_the_whole_body(piece, values):
    most = int((MAX_VALUES + 1024 - values - len(piece) / 48) / (1 + 1 / 48))
    cost = DecodingCost()
    cost.add(b"," * (most - 1))
    cost.add(piece)
    with pytest.raises(APIError):
        cost.add(b",,")


def test_no_text_is_refused_for_its_size_alone():
    cost = DecodingCost()
    for _ in range(64):
        cost.add("é".encode() * 2**19)
    cost.add(b"," * (MAX_VALUES // 3))
    with pytest.raises(APIError):
        cost.add(b"," * 1025)


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
    for size, explains in ((2**17, True), (2**17 + 1, False)):
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


def test_no_garbage_is_looked_for_while_a_body_is_checked():
    """Each of many new objects would start it again, and it takes as long as the check itself."""
    looked_for = []
    values = {"number": 1, "items": [{"a": "x"} for _ in range(5000)]}
    gc.callbacks.append(lambda phase, info: looked_for.append(phase))
    try:
        body, _ = parse_object(Fields, values)
    finally:
        gc.callbacks.pop()
    assert body.number == 1
    # What waited until the end of the check is looked for once.
    assert looked_for in ([], ["start", "stop"])
    assert gc.isenabled()


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
