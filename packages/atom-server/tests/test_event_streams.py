"""What an event stream sends, however it ends: whole, with an error, without its client, without its socket."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from atom_core.engine.outputs.request_stream import MAX_NEWS_IN_A_ROW
from atom_server.answers.streaming import DONE, EventStream, event, named_event
from atom_server.errors import APIError
from atom_server.generation.generation import Generation
from atom_server.output.harmony import HarmonyParser
from atom_server.output.schema_types import property_types
from atom_server.output.tagged_arguments import json_value


class Chunk(msgspec.Struct):
    n: int


class Ended:
    """Stands where a generation stands: notes how it was ended."""

    has_next = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def report(self, record: Any) -> None:
        self.done.append(f"reported {record.status}")

    async def close(self) -> None:
        self.done.append("closed")


class Exchange:
    """An event stream, a client that may leave, and what reached it."""

    def __init__(self, events, **options: Any) -> None:
        self.sent: list[dict] = []
        self.left = asyncio.Event()
        self.generation = Ended()
        self.record = SimpleNamespace(status=200)
        self.were_closed = False
        request: Any = SimpleNamespace(state=SimpleNamespace(record=self.record))
        generation: Any = self.generation
        self._stream = EventStream(request, generation, self._closing(events), **options)

    async def _closing(self, events):
        try:
            async for data in events:
                yield data
        finally:
            self.were_closed = True

    async def run(self, *, fails: bool = False) -> bytes:
        async def receive():
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if fails:
                raise OSError("the socket is gone")
            self.sent.append(message)

        await self._stream({"type": "http"}, receive, send)
        return b"".join(message.get("body", b"") for message in self.sent)


async def numbers(*values: int):
    for value in values:
        if value < 0:
            raise APIError(503, "overloaded", code="busy")
        yield event(Chunk(value))


async def test_a_stream_ends_with_a_mark_and_says_that_it_is_not_to_be_kept():
    exchange = Exchange(numbers(1, 2), headers={"x-more": "5"})
    assert await exchange.run() == b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'
    first, *bodies = exchange.sent
    headers = dict(first["headers"])
    assert (first["type"], first["status"]) == ("http.response.start", 200)
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-more"] == b"5"
    assert b"content-length" not in headers
    assert [message["more_body"] for message in bodies] == [True, True, False]
    assert exchange.generation.done == ["reported 200", "closed"]
    assert exchange.were_closed


async def test_events_that_are_there_together_are_sent_together_a_few_at_most():
    exchange = Exchange(numbers(*range(MAX_NEWS_IN_A_ROW + 2)))
    exchange.generation.has_next = True
    told = await exchange.run()
    assert [json.loads(line.removeprefix(b"data: "))["n"] for line in told.split(b"\n\n")[:-2]] == [
        *range(MAX_NEWS_IN_A_ROW + 2)
    ]
    _, first, last = exchange.sent
    assert (first["body"].count(b"data: "), last["body"].count(b"data: ")) == (MAX_NEWS_IN_A_ROW, 3)
    exchange = Exchange(numbers(1, 2, -1), failure=lambda error: b"failed ")
    exchange.generation.has_next = True
    assert await exchange.run() == event(Chunk(1)) + event(Chunk(2)) + b"failed " + DONE


async def test_an_event_is_sent_as_soon_as_the_news_behind_it_tell_nothing_and_no_others_are_there():
    sent_before_the_end: list[int] = []

    async def events():
        exchange.generation.has_next = True
        yield event(Chunk(1))
        exchange.generation.has_next = False
        yield b""
        sent_before_the_end.append(len(exchange.sent))
        yield b""

    exchange = Exchange(events())
    assert await exchange.run() == event(Chunk(1)) + DONE
    assert sent_before_the_end == [2]
    assert len(exchange.sent) == 3


ASKED = {"max_tokens": 6, "stream": True}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", ASKED | {"prompt": "hi"}),
        ("/v1/chat/completions", ASKED | {"messages": MESSAGES}),
        ("/v1/messages", ASKED | {"messages": MESSAGES}),
        ("/v1/responses", {"max_output_tokens": 6, "stream": True, "input": "hi"}),
    ],
)
def test_every_route_gives_bytes_for_each_piece_of_news_also_where_it_tells_nothing(server, monkeypatch, path, body):
    news, given = [], []
    outputs, make = Generation.outputs, EventStream.__init__

    async def of_no_text(self):
        async for index, output in outputs(self):
            news.append(output)
            yield index, output if output.finished else msgspec.structs.replace(output, text_delta="")

    async def noted(events):
        async for data in events:
            given.append(data)
            yield data

    def noting(self, request, generation, events, **options):
        make(self, request, generation, noted(events), **options)

    monkeypatch.setattr(Generation, "outputs", of_no_text)
    monkeypatch.setattr(EventStream, "__init__", noting)
    answer = httpx.post(server.url + path, json=body | {"model": server.state.model_name}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert len(given) >= len(news) > 1
    assert given.count(b"") >= len(news) - 2


async def test_an_error_is_the_last_event_but_the_mark():
    *_, told, end, rest = (await Exchange(numbers(1, -1)).run()).split(b"\n\n")
    assert (end, rest) == (DONE.strip(), b"")
    assert json.loads(told.removeprefix(b"data: "))["error"]["message"] == "overloaded"
    exchange = Exchange(numbers(-1), end=b"end", failure=lambda error: f"{error.status} {error.code} ".encode())
    assert await exchange.run() == b"503 busy end"
    assert exchange.generation.done == ["reported 200", "closed"]


async def test_a_client_that_leaves_ends_the_events():
    async def endless():
        yield b"1"
        await asyncio.sleep(1000)

    exchange = Exchange(endless())
    running = asyncio.ensure_future(exchange.run())
    while len(exchange.sent) < 2:
        await asyncio.sleep(0)
    exchange.left.set()
    assert await running == b"1"
    assert exchange.generation.done == ["reported 499", "closed"]
    assert exchange.were_closed


async def test_an_error_of_the_socket_is_not_lost():
    exchange = Exchange(numbers(1))
    with pytest.raises(OSError, match="the socket is gone"):
        await exchange.run(fails=True)
    assert exchange.generation.done == ["reported 200", "closed"]


def nested(schema: dict, times: int) -> dict:
    for _ in range(times):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("declared", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null", 5]}, {"string", "null"}),
        ({"type": "number"}, {"number", "integer"}),
        (
            {"enum": ["a", 1, None, True, 2.5, [], {}]},
            {"string", "integer", "null", "boolean", "number", "array", "object"},
        ),
        ({"const": 5}, {"integer"}),
        ({"const": None}, {"null"}),
        ({"anyOf": [{"type": "string"}, {"const": True}]}, {"string", "boolean"}),
        ({"oneOf": [{"type": "string"}, {}]}, set()),
        ({}, set()),
        (True, set()),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/$defs/missing"}, set()),
        ({"$ref": "other.json"}, set()),
        (nested({"type": "string"}, 16), {"string"}),
        (nested({"type": "string"}, 17), set()),
    ],
    ids=lambda one: str(sorted(one) if isinstance(one, set) else one)[:30],
)
def test_what_a_schema_says_of_a_value(declared, types):
    schema = {"properties": {"x": declared}, "$defs": {"a/b": {"type": "array"}}}
    assert property_types(schema, "x") == types
    assert property_types(schema, "y") == frozenset()
    assert property_types({"$ref": "#/$defs/all", "$defs": {"all": schema | {"$defs": {}}}}, "y") == frozenset()


def test_a_chain_of_references_is_followed_sixteen_times():
    def chain(length: int) -> dict:
        links = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(length - 1)}
        return {"$defs": links | {f"n{length - 1}": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/n0"}}}

    assert property_types(chain(16), "x") == {"string"}
    assert property_types(chain(17), "x") == frozenset()


def test_an_event_may_have_a_name():
    assert named_event("ping", Chunk(3)) == b'event: ping\ndata: {"n":3}\n\n'


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        (" 5 ", {"integer"}, 5),
        ("5", {"string"}, "5"),
        ("5", {"string", "integer"}, 5),
        ("5", set(), 5),
        ("5", {"boolean"}, 5),
        ("2.5", {"number"}, 2.5),
        ("True", {"boolean"}, True),
        ("False", {"boolean"}, False),
        ("None", {"null"}, None),
        ("None", {"null", "string"}, None),
        ("none", set(), "none"),
        ("True", {"string"}, "True"),
        ('"a"', {"string"}, "a"),
        ("[1]", {"array"}, [1]),
        ("[1]", {"string"}, "[1]"),
        ('{"a": 1}', {"object"}, {"a": 1}),
        ('{"a": 1}', {"string", "array"}, '{"a": 1}'),
        ("NaN", {"number"}, "NaN"),
        (" a\n", {"integer"}, " a\n"),
        ("é", {"string"}, "é"),
    ],
)
def test_a_bare_value_is_what_its_schema_lets_it_be(text, types, value):
    written = json_value(text, types)
    assert json.loads(written) == value
    assert "\\u" not in written


def test_a_call_without_arguments_has_an_empty_object():
    parser = HarmonyParser()
    parts = parser.feed("<|channel|>commentary to=functions.f<|message|><|call|>") + parser.finish()
    assert [(part.kind, part.text) for part in parts] == [("name", "f"), ("arguments", "{}")]
