"""The Responses API, through OpenAI's official client."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from atom_server.errors import APIError
from atom_server.generation.reply_reader import ReplyReader
from atom_server.responses.writer import ResponseWriter
from atom_server.schemas.create_response import CreateResponseRequest

INPUT = "Tell me a story."


def create(client, **fields) -> Any:
    settings = {"model": "tiny", "input": INPUT, "max_output_tokens": 12, "temperature": 0, **fields}
    return client.responses.create(**settings)


def chat_text(client, messages, **fields):
    settings: Any = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0, **fields}
    return client.chat.completions.create(**settings).choices[0].message.content


def user(text):
    return {"role": "user", "content": text}


def wait_for(client, response_id):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        response = client.responses.retrieve(response_id)
        if response.status != "in_progress":
            return response
        time.sleep(0.05)
    raise AssertionError("the response did not end")


def test_a_response_says_what_a_chat_completion_says(client):
    response = create(client, metadata={"a": "b"})
    assert response.id.startswith("resp_")
    assert response.output_text == chat_text(client, [user(INPUT)])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.metadata == {"a": "b"}
    assert response.usage.output_tokens == 12
    assert response.usage.total_tokens == response.usage.input_tokens + 12


# Every field of a request that its response tells again, with a value other than the default.
TOLD: dict[str, Any] = {
    "background": True,
    "instructions": "Be brief.",
    "max_output_tokens": 7,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "previous_response_id": "resp_1",
    "reasoning": {"effort": "low", "summary": None},
    "store": False,
    "temperature": 0.5,
    "text": {"format": {"type": "json_object"}},
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}],
    "top_logprobs": 2,
    "top_p": 0.25,
    "truncation": "disabled",
    "user": "me",
}
DEFAULTS = dict.fromkeys(TOLD) | {
    "background": False,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


@pytest.mark.parametrize(("fields", "told"), [(TOLD, TOLD), ({}, DEFAULTS)], ids=["given", "left out"])
def test_a_response_tells_all_that_was_asked_for_and_has_every_field(fields, told):
    writer = ResponseWriter(CreateResponseRequest(model="m", input="x", **fields), "m", ReplyReader(), None)
    response = writer.unfinished("queued")
    assert abs(response.pop("created_at") - time.time()) < 60
    assert response == told | {
        "id": writer.id,
        "object": "response",
        "status": "queued",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": [],
        "usage": None,
    }


def test_instructions_and_messages_reach_the_template(client):
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
             {"role": "user", "content": "d"}]  # fmt: skip
    messages = [
        {"role": "system", "content": "Be brief."},
        user("ab"),
        {"role": "assistant", "content": "c"},
        user("d"),
    ]
    assert create(client, instructions="Be brief.", input=items).output_text == chat_text(client, messages)


def test_the_events_of_a_stream_build_the_same_response(client):
    whole = create(client)
    events = list(create(client, stream=True))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(deltas) == events[-1].response.output_text == whole.output_text
    assert client.responses.retrieve(events[-1].response.id).output_text == whole.output_text


def test_the_clients_own_stream_helper_understands_it(client):
    settings: Any = {"model": "tiny", "input": INPUT, "max_output_tokens": 12, "temperature": 0}
    with client.responses.stream(**settings) as stream:
        for _ in stream:
            pass
    with client.responses.stream(**settings) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == create(client).output_text


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (499, "invalid_prompt"), (500, "server_error"), (503, "server_error")]
)
def test_a_failed_response_says_whose_fault_it_was(status, code):
    writer = ResponseWriter(CreateResponseRequest(model="m", input="x"), "m", ReplyReader(), None)
    failed = writer.unfinished("failed", APIError(status, "so it is"))
    assert failed["error"] == {"code": code, "message": "so it is"}


def test_a_response_goes_on_from_a_stored_one(client):
    first = create(client, instructions="Only for the first.")
    second = create(client, input="And then?", previous_response_id=first.id)
    messages = [user(INPUT), {"role": "assistant", "content": first.output_text}, user("And then?")]
    assert second.output_text == chat_text(client, messages)
    assert second.previous_response_id == first.id


def test_stored_responses_are_fetched_and_deleted(client):
    response = create(client)
    assert client.responses.retrieve(response.id).model_dump() == response.model_dump()
    client.responses.delete(response.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_that_is_not_to_be_stored_is_not(client):
    response = create(client, store=False)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_in_the_background_is_fetched_later(client):
    response = create(client, background=True)
    assert response.status == "in_progress"
    assert wait_for(client, response.id).output_text == create(client).output_text


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_response_in_the_background_can_be_ended(server, client, end):
    response = create(client, background=True, max_output_tokens=480)
    (generation,) = server.state.active
    if end == "cancel":
        assert client.responses.cancel(response.id).status == "cancelled"
        assert client.responses.cancel(response.id).status == "cancelled"
        assert client.responses.retrieve(response.id).status == "cancelled"
    else:
        client.responses.delete(response.id)
    server.wait_until_idle()
    assert generation._tallies._tallies[0].finish_reason in (None, "abort"), "it went on to its end"


def test_what_was_not_in_the_background_cannot_be_cancelled(client):
    response = create(client)
    with pytest.raises(BadRequestError, match="background"):
        client.responses.cancel(response.id)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content", "invalid_value"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id", "missing_required_parameter"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "previous_response_not_found"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"truncation": "auto"}, "truncation", "invalid_value"),
        ({"background": True, "store": False}, "store", "unsupported_parameter"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k", "invalid_value"),
    ],
)  # fmt: skip
def test_errors_name_the_field(client, fields, param, code):
    with pytest.raises(BadRequestError) as caught:
        create(client, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_text_format_is_followed(client):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    response = create(client, text={"format": form}, max_output_tokens=64)
    assert json.loads(response.output_text)["a"] in (1, 2)
    assert response.text.format.name == "answer"
