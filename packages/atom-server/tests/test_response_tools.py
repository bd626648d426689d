"""Functions, reasoning and streams of the Responses API, through OpenAI's official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError

TOOL: Any = {
    "type": "function", "name": "weather", "description": "Tells it.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip
CALL = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def create(client, **fields) -> Any:
    settings = {"model": "tiny", "input": "Hello", "max_output_tokens": 160, "temperature": 1.0, **fields}
    # A seed is no field of OpenAI's; a budget keeps a random model from thinking for ever.
    more = {"seed": 5, "thinking_token_budget": 4, **settings.pop("extra_body", {})}
    return client.responses.create(**settings, extra_body=more)


def test_a_required_call_is_an_item_of_the_output(client):
    response = create(client, **CALL)
    (item,) = response.output
    assert (response.status, item.type, item.name, item.status) == (
        "completed",
        "function_call",
        "weather",
        "completed",
    )
    assert item.call_id.startswith("call_")
    assert set(json.loads(item.arguments)) == {"city"}
    assert response.tools[0].name == "weather"
    assert response.tool_choice == "required"


def test_a_named_function_is_called(client):
    other = {**TOOL, "name": "other"}
    fields = {"tools": [TOOL, other], "tool_choice": {"type": "function", "name": "other"}}
    assert [item.name for item in create(client, **fields).output] == ["other"]


def test_the_events_of_a_call_build_it(client):
    whole = create(client, **CALL).output[0]
    events = list(create(client, **CALL, stream=True))
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert "".join(deltas) == events[-3].arguments == whole.arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_clients_own_stream_helper_understands_a_call(client):
    with client.responses.stream(model="tiny", input="Hello", **CALL) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output[0].name == "weather"


def test_a_call_and_its_output_go_on_from_a_stored_response(server, client):
    first = create(client, **CALL)
    (call,) = first.output
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "5 degrees"}]
    short = {"max_output_tokens": 8, "temperature": 0}
    stored = create(client, input=result, previous_response_id=first.id, tools=[TOOL], **short)
    items: Any = [{"role": "user", "content": "Hello"}, call.model_dump(exclude_none=True), *result]
    assert create(client, input=items, tools=[TOOL], **short).output_text == stored.output_text
    listed = client.responses.input_items.list(stored.id, order="asc").data
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
    assert listed[0].content[0].text == "Hello"
    page = client.responses.input_items.list(stored.id, limit=2)
    assert ([item.type for item in page.data], page.has_more) == (["function_call_output", "function_call"], True)


def test_reasoning_is_an_item_before_the_call(client, thinking):
    for seed in range(20):
        response = create(client, **CALL, extra_body={"seed": seed})
        if response.output[0].type == "reasoning":
            break
    reasoning, call = response.output
    assert reasoning.content[0].text
    assert call.name == "weather"
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    again: Any = [{"role": "user", "content": "Hi"}, reasoning.model_dump(), call.model_dump(exclude_none=True)]
    again.append({"type": "function_call_output", "call_id": call.call_id, "output": "x"})
    assert create(client, input=again, max_output_tokens=4).status == "incomplete"
    kinds = [event.type for event in create(client, **CALL, stream=True, extra_body={"seed": seed})]
    assert "response.reasoning_text.delta" in kinds
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.function_call_arguments.delta")


def test_logprobs_come_with_the_text(client):
    response = create(client, max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    assert len(entries) == 4
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    assert "".join(entry.token for entry in entries) == response.output_text


def test_a_stream_is_read_again_from_the_middle(client):
    events = list(create(client, stream=True, max_output_tokens=6))
    response_id = events[0].response.id
    again = list(client.responses.retrieve(response_id, stream=True, starting_after=2))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events[3:]]
    with pytest.raises(BadRequestError, match="stream"):
        client.responses.retrieve(create(client, max_output_tokens=2).id, stream=True)


def test_a_stream_in_the_background_goes_on_without_its_listener(server, client):
    body = {"input": "Hello", "max_output_tokens": 60, "stream": True, "background": True}
    with httpx.stream("POST", server.url + "/v1/responses", json=body) as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
    response_id = json.loads(first.removeprefix("data: "))["response"]["id"]
    events = list(client.responses.retrieve(response_id, stream=True, starting_after=0))
    assert events[0].type == "response.in_progress"
    assert events[-1].type in ("response.incomplete", "response.completed")
    assert client.responses.retrieve(response_id).output_text == events[-1].response.output_text
    server.wait_until_idle()
