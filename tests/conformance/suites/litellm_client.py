# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp==2.3.0"]
# ///
"""LiteLLM through its hosted_vllm provider: chat, streams, async, tools, JSON schemas, embeddings, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "maxProperties": 2,  # and not additionalProperties, which this client takes out on the way
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "x", "parameters": SCHEMA}}]


@pytest.fixture
def settings(url: str, model: str) -> dict[str, Any]:
    return {
        "model": f"hosted_vllm/{model}",
        "api_base": url + "/v1",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 12,
        "temperature": 0,
        "num_retries": 0,
        "timeout": 120,
    }


def test_a_stream_says_what_the_whole_answer_says(settings):
    whole = litellm.completion(**settings)
    chunks = list(litellm.completion(**settings, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_async_call_says_the_same(settings):
    answer = asyncio.run(litellm.acompletion(**settings))
    assert answer.choices[0].message.content == litellm.completion(**settings).choices[0].message.content


def test_a_required_tool_is_called_whole_and_in_a_stream(settings):
    fields = settings | {"max_tokens": 120, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = litellm.completion(**fields).choices[0].message.tool_calls[0].function
    assert json.loads(whole.arguments).keys() == {"city", "unit"}
    built = litellm.stream_chunk_builder(list(litellm.completion(**fields, stream=True)))
    assert built.choices[0].message.tool_calls[0].function.arguments == whole.arguments


def test_an_answer_follows_a_json_schema(settings):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = litellm.completion(**(settings | {"max_tokens": 120, "response_format": form}))
    assert json.loads(answer.choices[0].message.content).keys() == {"city", "unit"}


def test_text_completions_and_embeddings_work(url, model):
    text = litellm.text_completion(
        model=f"hosted_vllm/{model}", api_base=url + "/v1", prompt="The capital is", max_tokens=4
    )
    assert text.choices[0].text
    vectors = litellm.embedding(model=f"hosted_vllm/{model}", api_base=url + "/v1", input=["a cat", "a dog"])
    assert len(vectors.data) == 2


def test_errors_are_the_clients_classes(settings):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**(settings | {"model": "hosted_vllm/no-such-model"}))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**(settings | {"temperature": -1}))
