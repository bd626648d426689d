# /// script
# requires-python = ">=3.11"
# dependencies = ["anthropic==2.12.0"]
# ///
"""Anthropic's Python client: messages, streams of events, system prompts, stop sequences, counting, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


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


async def collect(url: str, settings: dict[str, Any]) -> str:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as claude:
        return (await claude.messages.create(**settings)).content[0].text


def test_the_async_client_says_the_same(url, client, settings):
    import asyncio

    assert asyncio.run(collect(url, settings)) == client.messages.create(**settings).content[0].text


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
