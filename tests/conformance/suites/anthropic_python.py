# /// script
# requires-python = ">=3.11"
# dependencies = ["anthropic==2.12.0"]
# ///
"""Anthropic's Python client: messages, streams of events, tools, system prompts, stop sequences, counting, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]

WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as claude:
        yield claude


@pytest.fixture
def settings(model: str) -> dict[str, Any]:
    # This client has no argument for the temperature; the API does.
    return {"model": model, "messages": QUESTION, "max_tokens": 12, "extra_body": {"temperature": 0}}


def test_a_message_has_text_usage_and_a_reason(client, settings):
    answer = client.messages.create(**settings)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", settings["model"])
    assert answer.content[0].text
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.usage.output_tokens > 0


def test_the_streams_helper_builds_the_same_message(client, settings):
    whole = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        built = stream.get_final_message()
    assert text == whole.content[0].text == built.content[0].text
    assert (built.stop_reason, built.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_raw_stream_has_the_events_in_order(client, settings):
    kinds = [event.type for event in client.messages.create(**settings, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_async_client_says_the_same(url, client, settings):
    async def ask() -> str:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as claude:
            return (await claude.messages.create(**settings)).content[0].text

    assert asyncio.run(ask()) == client.messages.create(**settings).content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_tool_is_used_whole_and_in_a_stream(client, settings, choice):
    fields = settings | {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 120}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        built = stream.get_final_message()
    (used,) = [block for block in whole.content if block.type == "tool_use"]
    assert whole.stop_reason == "tool_use"
    assert (used.name, used.input.keys()) == ("weather", {"city", "unit"})
    assert [block.input for block in built.content if block.type == "tool_use"] == [used.input]


def test_a_tools_result_is_taken_back(client, settings):
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris", "unit": "C"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21 C"}
    turns = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    answer = client.messages.create(**(settings | {"messages": turns, "tools": [WEATHER]}))
    assert answer.usage.output_tokens > 0


def test_a_stop_sequence_is_told(client, settings):
    text = client.messages.create(**settings).content[0].text
    answer = client.messages.create(**settings, stop_sequences=[text[3:6]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[3:6])
    assert answer.content[0].text == text[: text.index(text[3:6])]


def test_the_system_prompt_counts(client, settings):
    counted = client.messages.count_tokens(model=settings["model"], system="Be brief.", messages=QUESTION).input_tokens
    usage = client.messages.create(**settings, system="Be brief.").usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted > client.messages.count_tokens(model=settings["model"], messages=QUESTION).input_tokens - 20


def test_errors_are_the_clients_classes(client, settings):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**(settings | {"model": "no-such-model"}))
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(**(settings | {"max_tokens": 0}))
    assert wrong.value.body["error"]["type"] == "invalid_request_error"
