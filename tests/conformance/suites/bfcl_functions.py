# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "openai==3.54.0", "jsonschema==4.26.0", "tenacity==9.1.4", "tree_sitter==0.21.3", "tree-sitter-java==0.21.0",
#   "tree-sitter-javascript==0.21.4", "filelock==3.20.0",
# ]
# [tool.conformance]
# without-dependencies = ["bfcl-eval==2026.3.23"] # theirs are the clients of thirty vendors
# ///
"""Berkeley's function-calling leaderboard: its functions, required, whole and streamed: every call is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bfcl_eval
import jsonschema
import pytest
from bfcl_eval.constants.enums import ModelStyle
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.model_handler.utils import convert_to_tool
from openai import OpenAI

# One of so many of each: different functions, and few enough for a small machine.
SETS = {"simple_python": 200, "multiple": 100, "parallel": 100, "live_simple": 130}
LONGEST_TEXT, MOST_ITEMS = 12, 2


def cases() -> list[Any]:
    found = []
    for name, step in SETS.items():
        lines = (Path(bfcl_eval.__file__).parent / "data" / f"BFCL_v4_{name}.json").read_text().splitlines()
        for line in lines[::step]:
            case = json.loads(line)
            tools = convert_to_tool(case["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
            found.append(pytest.param(case["question"][0], bounded(tools), id=case["id"]))
    return found


def bounded(schema: Any) -> Any:
    """A schema whose values cannot go on for ever, as those of a model of this size would."""
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: bounded(value) for key, value in schema.items()}
    if schema.get("type") == "string" and "enum" not in schema:
        result["maxLength"] = LONGEST_TEXT
    if schema.get("type") == "array":
        result["maxItems"] = MOST_ITEMS
    if schema.get("type") == "object":
        result.setdefault("additionalProperties", False)
    return result


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300) as openai:
        yield openai


@pytest.mark.parametrize(("messages", "tools"), cases())
def test_a_required_call_is_valid_and_streams_the_same(client: OpenAI, model: str, messages: Any, tools: Any):
    fields: Any = {"model": model, "messages": messages, "tools": tools, "max_tokens": 400, "temperature": 0}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False}
    choice = client.chat.completions.create(**fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])

    deltas = [
        delta
        for chunk in client.chat.completions.create(**fields, stream=True)
        for choice in chunk.choices
        for delta in choice.delta.tool_calls or []
    ]
    assert deltas[0].function.name == call.function.name
    assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments
