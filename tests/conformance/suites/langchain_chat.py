# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.3"]
# ///
"""LangChain's ChatOpenAI: invoke, batch, stream with usage, bind_tools, structured output, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class Answer(BaseModel):
    """A city, and whether it is the right one."""

    city: str = Field(max_length=12)
    sure: Literal["yes", "no"]


@tool
def weather(unit: Literal["C", "F"]) -> str:
    """The weather here."""
    return f"21 {unit}"


@pytest.fixture(scope="module")
def make_chat(url: str, model: str) -> Callable[..., ChatOpenAI]:
    def make(**fields: Any) -> ChatOpenAI:
        settings = {"model": model, "max_tokens": 12, "temperature": 0, "max_retries": 0, "timeout": 120}
        return ChatOpenAI(base_url=url + "/v1", api_key="none", **(settings | fields))

    return make


def test_invoke_gives_text_and_usage(make_chat):
    answer = make_chat().invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_a_stream_says_the_same_and_carries_usage(make_chat):
    chunks = list(make_chat(stream_usage=True).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == make_chat().invoke(QUESTION).content
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) > 0


def test_a_batch_keeps_its_order(make_chat):
    questions = [QUESTION, "Count to three.", "Say hello."]
    together = [answer.content for answer in make_chat().batch(questions)]
    assert together == [make_chat().invoke(question).content for question in questions]


def test_bound_tools_are_called_and_their_results_taken(make_chat):
    bound = make_chat(max_tokens=100).bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke(QUESTION)
    call = answer.tool_calls[0]
    assert answer.invalid_tool_calls == []
    assert call["name"] == "weather"
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    followed = make_chat().bind_tools([weather], tool_choice="none").invoke([HumanMessage(QUESTION), answer, result])
    assert isinstance(followed, AIMessage)


def test_streamed_tool_calls_add_up(make_chat):
    bound = make_chat(max_tokens=100).bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    first, *others = list(bound.stream(QUESTION))
    whole = first
    for chunk in others:
        whole = whole + chunk
    assert whole.tool_calls[0]["args"] == bound.invoke(QUESTION).tool_calls[0]["args"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object_of_the_class(make_chat, method):
    answer = make_chat(max_tokens=120).with_structured_output(Answer, method=method).invoke(QUESTION)
    assert isinstance(answer, Answer)


def test_text_completions_and_embeddings_work(url, model):
    fields: Any = {"base_url": url + "/v1", "api_key": "none", "model": model}
    assert OpenAI(**fields, max_tokens=6, temperature=0).invoke("The capital of France is")
    # Token ids of another vocabulary would be sent otherwise.
    vectors = OpenAIEmbeddings(**fields, check_embedding_ctx_length=False).embed_documents(["a cat", "a dog"])
    assert len(vectors) == 2
    assert vectors[0] != vectors[1]
