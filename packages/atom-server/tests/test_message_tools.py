"""Tools and thinking of the Messages API, through Anthropic's official client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip
ANY: Any = {"type": "any", "disable_parallel_tool_use": True}


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def create(client, **fields) -> Any:
    return client.messages.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 160, **fields})


@pytest.mark.parametrize("choice", [ANY, {**ANY, "type": "tool", "name": "weather"}])
def test_a_tool_is_used_where_it_has_to_be(claude, choice):
    answer = create(claude, tools=[TOOL], tool_choice=choice)
    (block,) = answer.content
    assert (answer.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "weather")
    assert set(block.input) == {"city"}


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}, None])
def test_otherwise_the_model_may_just_speak(claude, choice):
    more = {} if choice is None else {"tool_choice": choice}
    answer = create(claude, tools=[TOOL], max_tokens=4, **more)
    # Tokens are drawn at random here, and one of them may end the turn.
    assert {block.type for block in answer.content} <= {"text"}
    assert answer.stop_reason in ("max_tokens", "end_turn")


def test_a_stream_of_events_builds_the_input(claude):
    with claude.messages.stream(
        model="tiny", messages=MESSAGES, max_tokens=160, tools=[TOOL], tool_choice=ANY
    ) as stream:
        events = list(stream)
        message = stream.get_final_message()
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert len(pieces) > 1
    assert set(message.content[0].input) == {"city"}
    assert message.stop_reason == "tool_use"


def test_results_reach_the_template_as_messages_of_their_own(server, claude):
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5 degrees"}]},
            {"type": "text", "text": "And now?"},
        ]},
    ]  # fmt: skip
    chat = [
        *MESSAGES,
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}},
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": "5 degrees"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    count = claude.messages.count_tokens(model="tiny", messages=turns, tools=[TOOL]).input_tokens
    tokens = server.post("/tokenize", messages=chat).json()["count"]
    assert count == tokens
    assert create(claude, messages=turns, max_tokens=4, tools=[TOOL]).usage.output_tokens == 4


def test_thinking_is_a_block_with_a_budget(claude, thinking):
    # Anthropic's client knows no seed; a few tries find a model that thinks before it calls.
    fields: Any = {"tools": [TOOL], "tool_choice": ANY, "thinking": {"type": "enabled", "budget_tokens": 5}}
    for _ in range(30):
        answer = create(claude, **fields)
        assert answer.content[-1].type == "tool_use"
        if answer.content[0].type == "thinking":
            break
    else:
        pytest.fail("it never thought")
    assert answer.content[0].thinking
    again: Any = [*MESSAGES, {"role": "assistant", "content": answer.content}]
    again.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[-1].id}]})
    assert create(claude, messages=again, max_tokens=2).content


def test_thinking_that_is_disabled_is_not_shown(claude, thinking):
    fields: Any = {"tools": [TOOL], "tool_choice": ANY, "thinking": {"type": "disabled"}}
    for _ in range(4):
        answer = create(claude, **fields, extra_body={"thinking_token_budget": 0})
        assert "thinking" not in [block.type for block in answer.content]
