# ruff: noqa: E501  (a table reads best with a row a line)
"""The Messages API, through Anthropic's official client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from atom_server import ServerOptions
from atom_server.bodies.body import parse_object
from atom_server.errors import APIError
from atom_server.schemas.messages import MessagesRequest

MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def create(client, temperature=0, **fields):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, **fields}
    # Newer clients have no argument for the temperature; the API does.
    return client.messages.create(**settings, extra_body={"temperature": temperature})


def chat_text(server, **fields):
    settings = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, **fields}
    return server.post("/v1/chat/completions", **settings).json()["choices"][0]["message"]["content"]


def test_a_message_says_what_a_chat_completion_says(server, claude):
    answer = create(claude)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg-")
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == chat_text(server)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 12


def test_the_system_prompt_and_text_blocks_reach_the_template(server, claude):
    blocks = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story.", "cache_control": None}]
    answer = create(claude, system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
                    messages=[{"role": "user", "content": blocks}])  # fmt: skip
    assert answer.content[0].text == chat_text(
        server, messages=[{"role": "system", "content": "Be\nbrief."}, *MESSAGES]
    )


def test_a_stream_of_events_builds_the_same_message(claude):
    whole = create(claude)
    settings: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "extra_body": {"temperature": 0}}
    with claude.messages.stream(**settings) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert message.content[0].text == whole.content[0].text
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_is_told(claude):
    text = create(claude, max_tokens=16).content[0].text
    stop = text[4:7]
    answer = create(claude, max_tokens=16, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]


def test_an_assistants_last_message_is_continued(server, claude):
    started = [*MESSAGES, {"role": "assistant", "content": "Once upon"}]
    assert create(claude, messages=started).content[0].text == chat_text(
        server, messages=started, continue_final_message=True
    )


def test_tokens_are_counted_as_they_are_used(claude):
    count = claude.messages.count_tokens(model="tiny", system="Be brief.", messages=MESSAGES).input_tokens
    usage = create(claude, system="Be brief.").usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("fields", "error", "kind", "param"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error", "model"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 4000}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        ({"temperature": -1}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "invalid_request_error", "stop_sequences[0]"),
        ({"tools": [{"type": "web_search_20260101", "name": "f"}]}, anthropic.BadRequestError, "invalid_request_error", "tools[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, anthropic.BadRequestError, "invalid_request_error", "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": " "}]}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError, "invalid_request_error", "messages[0].content[0].source"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_shape(claude, fields, error, kind, param):
    with pytest.raises(error) as caught:
        create(claude, **fields)
    body = caught.value.body
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["param"]) == (kind, param)


def test_the_key_may_come_in_anthropics_header(make_front):
    with make_front(ServerOptions(api_key="right")) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="right", max_retries=0) as client:
            assert create(client, model=server.state.model_name).content
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            create(client)
    body: Any = caught.value.body
    assert body["error"]["type"] == "authentication_error"


def conversation(*num_blocks):
    """A message for each number, of as many blocks; and one that is a string."""
    turns = [{"role": "user", "content": [{"type": "text", "text": "a"}] * number} for number in num_blocks]
    return {"max_tokens": 1, "messages": [*turns, {"role": "user", "content": "and this"}]}


def test_all_messages_together_have_a_limited_number_of_blocks():
    parse_object(MessagesRequest, conversation(4096, 4000, 96))
    with pytest.raises(APIError, match="'messages' must have at most 8192 blocks of content together, not 8193"):
        parse_object(MessagesRequest, conversation(4096, 4000, 96, 1))
