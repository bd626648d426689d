# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0", "pydantic==2.14.3"]
# ///
"""OpenAI's Python client: chat, completions, streams, async, parsed answers, tools, responses, embeddings, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Answer(BaseModel):
    """What a parsed answer becomes."""

    city: str = Field(max_length=12)
    sure: Literal["yes", "no"]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as openai:
        yield openai


@pytest.fixture
def chat(client: OpenAI, model: str):
    def create(**fields: Any) -> Any:
        settings = {"model": model, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        return client.chat.completions.create(**(settings | fields))

    return create


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_the_model_is_listed_and_found(client: OpenAI, model: str):
    assert model in [entry.id for entry in client.models.list()]
    assert client.models.retrieve(model).id == model


def test_a_chat_completion_has_text_usage_and_a_reason(chat):
    answer = chat()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_and_ends_with_usage(chat):
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == chat().choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_the_streams_helper_builds_the_same_answer(client: OpenAI, model: str, chat):
    # It takes no answer that was cut at its length, so a stop string ends this one.
    settings: Any = {"max_tokens": 12, "temperature": 0, "stop": chat().choices[0].message.content[3:6]}
    with client.chat.completions.stream(model=model, messages=QUESTION, **settings) as stream:
        built = stream.get_final_completion()
    assert built.choices[0].message.content == chat(**settings).choices[0].message.content


def test_async_calls_run_side_by_side(url: str, model: str, chat):
    async def ask(openai: AsyncOpenAI) -> str:
        settings: Any = {"model": model, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        return text_of([chunk async for chunk in await openai.chat.completions.create(**settings, stream=True)])

    async def work() -> list[str]:
        async with AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as openai:
            return await asyncio.gather(*(ask(openai) for _ in range(3)))

    assert asyncio.run(work()) == [chat().choices[0].message.content] * 3


def test_samples_logprobs_and_stop_strings_are_given(chat):
    assert [choice.index for choice in chat(n=2, temperature=1, seed=1).choices] == [0, 1]
    entries = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)
    text = chat().choices[0].message.content
    assert chat(stop=[text[3:6]]).choices[0].message.content == text[: text.index(text[3:6])]


def test_a_text_completion_echoes_its_prompt_and_streams(client: OpenAI, model: str):
    settings: Any = {"model": model, "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**settings, echo=True).choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**settings, stream=True))
    assert whole == settings["prompt"] + streamed


def test_an_answer_is_parsed_into_a_class(client: OpenAI, model: str):
    settings: Any = {"model": model, "messages": QUESTION, "max_tokens": 120, "temperature": 1, "seed": 5}
    parsed = client.chat.completions.parse(**settings, response_format=Answer).choices[0].message.parsed
    assert isinstance(parsed, Answer)
    with client.chat.completions.stream(**settings, response_format=Answer) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_is_called_with_arguments_of_its_schema(chat, choice):
    answer = chat(tools=[WEATHER], tool_choice=choice, max_tokens=120, temperature=1, seed=2).choices[0]
    arguments = json.loads(answer.message.tool_calls[0].function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert answer.message.tool_calls[0].function.name == "weather"


def test_streamed_deltas_make_up_the_same_call(chat):
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 120, "parallel_tool_calls": False}
    whole = chat(**fields).choices[0].message.tool_calls[0].function
    chunks = list(chat(**fields, stream=True))
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert deltas[0].function.name == whole.name
    assert "".join(delta.function.arguments or "" for delta in deltas) == whole.arguments


def test_a_calls_result_is_taken_back(chat):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 C"},
    ]
    assert chat(messages=messages, tools=[WEATHER], tool_choice="none").choices[0].message.content


def test_responses_are_created_streamed_kept_and_deleted(client: OpenAI, model: str):
    settings: Any = {"model": model, "input": "What is the capital of France?", "max_output_tokens": 12}
    settings["temperature"] = 0
    whole = client.responses.create(**settings)
    with client.responses.stream(**settings) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert streamed == whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    client.responses.delete(whole.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(whole.id)


def test_a_response_calls_a_function_and_takes_its_result(client: OpenAI, model: str):
    function = {"type": "function", "strict": True, **WEATHER["function"]}
    settings: Any = {"model": model, "tools": [function], "max_output_tokens": 120, "temperature": 0}
    first = client.responses.create(**settings, input="How is the weather?", tool_choice="required")
    call = next(item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments).keys()) == ("weather", {"city", "unit"})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21 C"}
    second = client.responses.create(**settings, input=[result], previous_response_id=first.id, tool_choice="none")
    assert second.usage.output_tokens > 0


def test_embeddings_come_in_order_and_in_base64_by_default(client: OpenAI, model: str):
    both = client.embeddings.create(model=model, input=["a cat", "a dog"]).data
    plain = client.embeddings.create(model=model, input="a dog", encoding_format="float").data
    assert [entry.index for entry in both] == [0, 1]
    assert both[1].embedding == pytest.approx(plain[0].embedding, abs=1e-3)


def test_errors_are_the_clients_classes_with_code_and_param(chat):
    with pytest.raises(NotFoundError) as unknown:
        chat(model="no-such-model")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(BadRequestError) as wrong:
        chat(temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(BadRequestError) as long:
        chat(messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
