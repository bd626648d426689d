"""What writers make of parts of an answer: each event and each field, in order."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from atom_server.answers.message_writer import MessageWriter
from atom_server.output.parts import Part
from atom_server.responses.output import OutputWriter


def call_id(name: str, number: int) -> str:
    return f"{name}-{number}"


def events_of(data: bytes) -> list[tuple[str, dict]]:
    """Names and bodies of server-sent events."""
    found = []
    for text in data.decode().split("\n\n")[:-1]:
        name, body = text.split("\n")
        found.append((name.removeprefix("event: "), json.loads(body.removeprefix("data: "))))
    return found


# Messages.


def usage_of(prompt=10, cached=4, completion=3) -> SimpleNamespace:
    details = SimpleNamespace(cached_tokens=cached)
    return SimpleNamespace(prompt_tokens=prompt, completion_tokens=completion, prompt_tokens_details=details)


USAGE = {"input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 3}


def make_message_writer() -> MessageWriter:
    generation: Any = SimpleNamespace(id="msg_1", model="tiny", usage=usage_of)
    return MessageWriter(generation, call_id)


def test_a_message_begins_without_blocks_and_ends_with_its_reason():
    writer = make_message_writer()
    ((name, start),) = events_of(writer.start())
    assert (name, start) == (
        "message_start",
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "tiny",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": USAGE,
            },
        },
    )
    delta, stop = events_of(writer.stop("stop", None))
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta == ("message_delta", {"type": "message_delta", "delta": ending, "usage": USAGE})
    assert stop == ("message_stop", {"type": "message_stop"})


@pytest.mark.parametrize(
    ("finish", "stop", "parts", "reason", "sequence"),
    [
        ("length", "x", [], "max_tokens", None),
        ("stop", "x", [], "stop_sequence", "x"),
        ("stop", 7, [], "end_turn", None),
        ("stop", None, [], "end_turn", None),
        ("stop", None, [Part("name", "f")], "tool_use", None),
        ("stop", "x", [Part("name", "f")], "stop_sequence", "x"),
    ],
)
def test_why_a_message_ended(finish, stop, parts, reason, sequence):
    writer = make_message_writer()
    writer.take(parts)
    assert writer.ending(finish, stop) == {"stop_reason": reason, "stop_sequence": sequence}


def test_blocks_follow_the_kinds_of_parts():
    writer = make_message_writer()
    parts = [
        *(Part("reasoning", "h"), Part("reasoning", "m"), Part("content", "a"), Part("content", "b")),
        *(Part("name", "f"), Part("arguments", '{"x"'), Part("arguments", ": 1}"), Part("name", "g")),
    ]
    data = writer.take(parts) + writer.end_blocks()
    short = [f"{body['type'].removeprefix('content_block_')} {body['index']}" for _, body in events_of(data)]
    whole = [f"{event} {block}" for block in range(3) for event in ("start", "delta", "delta", "stop")]
    assert short == [*whole, "start 3", "stop 3"]
    assert all(name == body["type"] for name, body in events_of(data))
    bodies = [body for _, body in events_of(data)]
    assert [body["content_block"] for body in bodies if "content_block" in body] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "f-0", "name": "f", "input": {}},
        {"type": "tool_use", "id": "g-1", "name": "g", "input": {}},
    ]
    assert [body["delta"] for body in bodies if "delta" in body] == [
        {"type": "thinking_delta", "thinking": "h"},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "text_delta", "text": "a"},
        {"type": "text_delta", "text": "b"},
        {"type": "input_json_delta", "partial_json": '{"x"'},
        {"type": "input_json_delta", "partial_json": ": 1}"},
    ]
    assert writer.blocks == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": "f-0", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "g-1", "name": "g", "input": {}},
    ]
    assert writer.end_blocks() == b""


def test_a_message_has_one_block_at_least():
    writer = make_message_writer()
    kinds = [body["type"] for _, body in events_of(writer.end_blocks())]
    assert kinds == ["content_block_start", "content_block_stop"]
    assert writer.blocks == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("arguments", "value"), [("", {}), ('{"a": 2}', {"a": 2}), ('{"a"', {}), ("[1]", {}), ("null", {})]
)
def test_the_input_of_a_call_is_an_object(arguments, value):
    writer = make_message_writer()
    writer.take([Part("name", "f"), Part("arguments", arguments)])
    writer.end_blocks()
    assert writer.blocks[0]["input"] == value


def test_text_behind_a_call_is_a_block_of_its_own():
    writer = make_message_writer()
    writer.take([Part("name", "f"), Part("content", "a"), Part("name", "g"), Part("arguments", "{}")])
    writer.end_blocks()
    assert [block["type"] for block in writer.blocks] == ["tool_use", "text", "tool_use"]


# Responses.


class Told:
    """Writes events down."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def __call__(self, kind: str, **fields: Any) -> bytes:
        self.events.append((kind, json.loads(json.dumps(fields))))
        return f"{kind} ".encode()


LOGPROBS = [{"token": "a"}, {"token": "b"}]


def test_a_message_grows_by_deltas_and_ends_whole():
    told = Told()
    writer = OutputWriter(told, call_id)
    assert writer.take([Part("content", "a")], LOGPROBS[:1]) == (
        b"response.output_item.added response.content_part.added response.output_text.delta "
    )
    writer.take([Part("content", "b")], [])
    item_id = writer.items[0]["id"]
    assert item_id.startswith("msg_")
    assert len(item_id) == 36
    writer.end("incomplete", LOGPROBS[1:])
    where = {"item_id": item_id, "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": LOGPROBS}
    item = {"type": "message", "id": item_id, "status": "in_progress", "role": "assistant", "content": []}
    assert told.events == [
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**where, "part": part | {"text": "", "logprobs": []}}),
        ("response.output_text.delta", {**where, "delta": "a", "logprobs": LOGPROBS[:1]}),
        ("response.output_text.delta", {**where, "delta": "b", "logprobs": []}),
        ("response.output_text.done", {**where, "text": "ab", "logprobs": LOGPROBS}),
        ("response.content_part.done", {**where, "part": part}),
        (
            "response.output_item.done",
            {"output_index": 0, "item": item | {"status": "incomplete", "content": [part]}},
        ),
    ]


def test_reasoning_and_calls_are_items_of_their_own():
    told = Told()
    writer = OutputWriter(told, call_id)
    writer.take([Part("reasoning", "h"), Part("reasoning", "m"), Part("name", "f"), Part("arguments", "{")], LOGPROBS)
    writer.take([Part("arguments", "}"), Part("name", "g")], [])
    writer.end("completed", [])
    reasoning, first, second = writer.items
    assert [item["id"].partition("_")[0] for item in writer.items] == ["rs", "fc", "fc"]
    assert reasoning == {
        "type": "reasoning",
        "id": reasoning["id"],
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    assert first == {
        "type": "function_call",
        "id": first["id"],
        "status": "completed",
        "call_id": "f-0",
        "name": "f",
        "arguments": "{}",
    }
    assert (second["call_id"], second["arguments"], second["status"]) == ("g-1", "", "completed")
    where = {"item_id": first["id"], "output_index": 1}
    assert [(kind, fields) for kind, fields in told.events if "arguments" in kind] == [
        ("response.function_call_arguments.delta", {**where, "delta": "{"}),
        ("response.function_call_arguments.delta", {**where, "delta": "}"}),
        ("response.function_call_arguments.done", {**where, "name": "f", "arguments": "{}"}),
        (
            "response.function_call_arguments.done",
            {"item_id": second["id"], "output_index": 2, "name": "g", "arguments": ""},
        ),
    ]
    texts = [(kind, fields) for kind, fields in told.events if "reasoning_text" in kind]
    at = {"item_id": reasoning["id"], "output_index": 0, "content_index": 0}
    assert texts == [
        ("response.reasoning_text.delta", {**at, "delta": "h"}),
        ("response.reasoning_text.delta", {**at, "delta": "m"}),
        ("response.reasoning_text.done", {**at, "text": "hm"}),
    ]
    added = [
        (fields["output_index"], fields["item"]["type"])
        for kind, fields in told.events
        if kind.endswith("added") and "item" in fields
    ]
    assert added == [(0, "reasoning"), (1, "function_call"), (2, "function_call")]


def test_log_probabilities_go_with_the_first_text_of_the_answer():
    told = Told()
    writer = OutputWriter(told, call_id)
    writer.take([Part("reasoning", "h"), Part("content", "a"), Part("content", "b")], LOGPROBS)
    assert writer.items[1]["content"][0]["logprobs"] == LOGPROBS
    deltas = [fields["logprobs"] for kind, fields in told.events if kind == "response.output_text.delta"]
    assert deltas == [LOGPROBS, []]


def test_an_answer_without_parts_is_an_empty_message():
    writer = OutputWriter(Told(), call_id)
    writer.end("completed", LOGPROBS)
    (item,) = writer.items
    assert (item["type"], item["status"]) == ("message", "completed")
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": LOGPROBS}]
    called = OutputWriter(Told(), call_id)
    called.take([Part("name", "f")], [])
    called.end("completed", LOGPROBS)
    assert "content" not in called.items[0]
    assert called.end("completed", []) == b""
