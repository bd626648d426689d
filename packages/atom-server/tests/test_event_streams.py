"""What an event stream sends, however it ends: whole, with an error, without its client, without its socket."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from atom_core.engine.outputs.request_stream import RequestStream
from atom_server.answers.streaming import DONE, EventStream, EventWriter, event, named_event, tell
from atom_server.errors import APIError
from atom_server.output.harmony import HarmonyParser
from atom_server.output.schema_types import property_types
from atom_server.output.tagged_arguments import json_value
from atom_server.responses.event_log import EventLog
from atom_server.responses.events import ResponseEvents


class Chunk(msgspec.Struct):
    n: int


class Told:
    """Stands where a generation stands: has news, and notes how it was ended. The news of a choice are numbers.

    Args:
        together: the news that are there together, one group after the other; a negative one fails.
        then: awaited after the last.
    """

    def __init__(self, *together: list[int], then: Callable[[], Awaitable[None]] | None = None) -> None:
        self.done: list[str] = []
        self._together, self._then = deque(together), then

    async def news(self) -> Iterator[tuple[int, Any]] | None:
        if self._together:
            return map(self._take, self._together.popleft())
        if self._then is not None:
            await self._then()
        return None

    def _take(self, number: int) -> tuple[int, Any]:
        if number < 0:
            raise APIError(503, "overloaded", code="busy")
        return 0, number

    def report(self, record: Any) -> None:
        self.done.append(f"reported {record.status}")

    async def close(self) -> None:
        self.done.append("closed")


class Numbers(EventWriter):
    """An event for each number above 0, and nothing for 0."""

    is_closed = False

    def take(self, index: int, output: Any) -> bytes:
        self.task = asyncio.current_task()
        return event(Chunk(output)) if output else b""

    def close(self) -> None:
        self.is_closed = True


class Framed(Numbers):
    def begin(self) -> bytes:
        return b"begin "

    def end(self) -> bytes:
        return b"end"

    def fail(self, error: APIError) -> bytes:
        return f"{error.status} {error.code}".encode()


class Exchange:
    """An event stream, a client that may leave, and what reached it."""

    def __init__(self, told: Told, writer: Numbers | None = None, **options: Any) -> None:
        self.sent: list[dict] = []
        self.left = asyncio.Event()
        self.generation, self.writer = told, writer or Numbers()
        self.record = SimpleNamespace(status=200)
        request: Any = SimpleNamespace(state=SimpleNamespace(record=self.record))
        generation: Any = told
        self._stream = EventStream(request, generation, self.writer, **options)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]

    async def run(self, *, fails: bool = False) -> bytes:
        async def receive():
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if fails:
                raise OSError("the socket is gone")
            self.sent.append(message)

        await self._stream({"type": "http"}, receive, send)
        return b"".join(self.bodies)


async def test_a_stream_ends_with_a_mark_and_says_that_it_is_not_to_be_kept():
    exchange = Exchange(Told([1], [2]), headers={"x-more": "5"})
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
    assert exchange.writer.is_closed


async def test_events_of_news_that_are_there_together_are_sent_together_and_none_waits_for_later_news():
    exchange = Exchange(Told([1, 2], [0, 3], [0]))
    await exchange.run()
    assert exchange.bodies == [event(Chunk(1)) + event(Chunk(2)), event(Chunk(3)), DONE]
    exchange = Exchange(Told([1], [2, 3, -1]), Framed())
    await exchange.run()
    assert exchange.bodies == [b"begin ", event(Chunk(1)), event(Chunk(2)) + event(Chunk(3)) + b"503 busy"]


async def test_an_error_is_the_last_event_but_the_mark():
    *_, told, end, rest = (await Exchange(Told([1], [-1])).run()).split(b"\n\n")
    assert (end, rest) == (DONE.strip(), b"")
    assert json.loads(told.removeprefix(b"data: "))["error"]["message"] == "overloaded"
    exchange = Exchange(Told([-1]), Framed())
    assert await exchange.run() == b"begin 503 busy"
    assert exchange.generation.done == ["reported 200", "closed"]


async def test_a_client_that_leaves_ends_the_events():
    exchange = Exchange(Told([1], then=asyncio.Event().wait))
    running = asyncio.ensure_future(exchange.run())
    while len(exchange.sent) < 2:
        await asyncio.sleep(0)
    exchange.left.set()
    assert await running == event(Chunk(1))
    assert exchange.generation.done == ["reported 499", "closed"]
    assert exchange.writer.is_closed


async def test_an_error_of_the_socket_is_not_lost():
    exchange = Exchange(Told([1]))
    with pytest.raises(OSError, match="the socket is gone"):
        await exchange.run(fails=True)
    assert exchange.generation.done == ["reported 200", "closed"]


async def test_whoever_called_the_stream_is_not_woken_for_each_token():
    exchange = Exchange(Told([1]))
    await exchange.run()
    assert exchange.writer.task is not asyncio.current_task()


async def test_a_response_that_fails_is_kept_as_failed_with_its_events():
    writer: Any = SimpleNamespace(
        begin=lambda: b"begun\n\n",
        take=lambda text, num_tokens, logprobs: b"",
        unfinished=lambda status, error: {"status": status, "error": error.code},
        ended=lambda response: f"{response['status']}\n\n".encode(),
    )
    log, kept, sent = EventLog(), [], []

    async def send(data: bytes, more: bool) -> None:
        sent.append((data, more))

    told: Any = Told([-1])
    events = ResponseEvents(writer, told, log, on_end=kept.append, on_close=log.close)
    await tell(told, events, send)
    events.close()
    assert kept == [{"status": "failed", "error": "busy"}]
    assert sent == [(b"begun\n\n", True), (b"failed\n\n", False)]
    assert [data async for data in log.follow()] == [b"begun\n\n", b"failed\n\n"]


def test_news_count_as_they_are_told_though_they_come_together(server, monkeypatch):
    async def all_together(self):
        return [output async for output in self]

    monkeypatch.setattr(RequestStream, "together", all_together)
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": "hi", "max_tokens": 6, "ignore_eos": True, "stream": True, "stream_options": options}
    body = asked | {"model": server.state.model_name, "return_token_ids": True}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    chunks = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]
    told = [sum(len(choice["token_ids"]) for choice in chunk["choices"]) for chunk in chunks]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [*accumulate(told)]
    assert len(chunks) > 3


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
