"""Enforced calls in every family's own notation: random functions, a random model, temperature 1, every call valid."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from atom_server import ServerOptions
from atom_server.output import harmony
from atom_server.output.notation import FORMATS
from atom_server.output.output_format import OutputFormat
from function_schemas import make_tool
from response_templates import TEMPLATES
from tiny_models import add_special_tokens, make_tiny_llama

NUM_SCHEMAS = 200
# Each function is called in one notation: of a family, or of a response template.
IN_TEMPLATES, IN_FAMILIES = range(NUM_SCHEMAS // 2), range(NUM_SCHEMAS // 2, NUM_SCHEMAS)
MESSAGES = [{"role": "user", "content": "hello"}]
SPECIAL_MARKS = (
    *harmony.MARKS, "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]",
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<|tool_calls_section_end|>", "｜DSML｜", "<|tool_call>", "<tool_call|>", '<|"|>', "<escape>"),
    *("<start_function_call>", "<end_function_call>"),
)  # fmt: skip
# Long enough for any one call of these functions.
ONE_CALL = {"parallel_tool_calls": False, "max_tokens": 900}


@pytest.fixture(scope="module")
def long_server(make_server, tmp_path_factory):
    """A server whose model has room for long calls, and the marks that are special tokens in their families."""
    folder: Path = make_tiny_llama(tmp_path_factory.mktemp("long") / "tiny", max_position=1024)
    add_special_tokens(folder, SPECIAL_MARKS)
    with make_server(ServerOptions(served_model_name="tiny"), model=folder) as server:
        yield server


@pytest.fixture
def speaks(long_server):
    """``speaks(name)`` makes the server's model one of a family, or with a template, and gives the server."""
    before = long_server.state.output_format

    def become(name: str = "auto", reasoning: str = "none", declared: Any = None):
        output = OutputFormat.infer(
            "", long_server.engine.tokenizer, calls=name, reasoning=reasoning, declared=declared
        )
        long_server.state.output_format = output
        return long_server

    yield become
    long_server.state.output_format = before


@pytest.fixture
def declares(speaks):
    """``declares(name)`` makes the server's model one that brings a response template, and gives the server."""
    return lambda name: speaks(reasoning="auto", declared=TEMPLATES[name])


def ask(server, seed, tools, **fields) -> Any:
    settings: dict[str, Any] = {"messages": MESSAGES, "temperature": 1.0, "seed": seed, "tools": tools}
    # GPT-OSS thinks before it calls; a random model would go on for ever.
    settings |= {"tool_choice": "required", "thinking_token_budget": 8, **fields}
    answer = server.post("/v1/chat/completions", **settings)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def check(call, tools):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])


def check_one_call(server, seed):
    source = random.Random(seed)
    tools = [make_tool(source, "f"), make_tool(source, "g")]
    choice = ask(server, seed, tools, **ONE_CALL)
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    check(call, tools)


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_follows_its_schema_in_the_notation_of(speaks, name):
    for seed in range(2):
        check_one_call(speaks(name), seed + zlib.crc32(name.encode()) % 1000)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_required_call_follows_its_schema_under_the_response_template_of(declares, name):
    for seed in range(3):
        check_one_call(declares(name), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", IN_TEMPLATES)
def test_under_response_templates_each_of_many_functions_is_called_by_its_schema(declares, seed):
    check_one_call(declares(list(TEMPLATES)[seed % len(TEMPLATES)]), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", IN_FAMILIES)
def test_each_of_many_functions_is_called_by_its_schema(speaks, seed):
    check_one_call(speaks(FORMATS[seed % len(FORMATS)]), seed)


@pytest.mark.parametrize("name", ["hermes", "mistral-json", "mistral", "deepseek-v3", "kimi", "glm"])
def test_several_calls_of_one_turn_all_follow_their_schemas(speaks, name):
    count = 0
    for seed in range(20):
        tools = [make_tool(random.Random(seed), "f"), make_tool(random.Random(seed + 1), "g")]
        choice = ask(speaks(name), seed, tools, max_tokens=900)
        calls = choice["message"]["tool_calls"]
        # A random model may go on calling until its tokens are used up, in the middle of a call.
        whole = calls if choice["finish_reason"] == "tool_calls" else calls[:-1]
        for call in whole:
            check(call, tools)
        count = max(count, len(whole))
        if count > 1:
            return
    pytest.fail("no turn had several calls")


@pytest.mark.parametrize("name", ["hermes", "mistral", "qwen3-coder", "harmony", "gemma-4", "deepseek-v32"])
def test_streamed_deltas_make_up_the_same_calls(speaks, name):
    check_deltas(speaks(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_streamed_deltas_make_up_the_same_calls_under_the_response_template_of(declares, name):
    check_deltas(declares(name))


def check_deltas(server):
    tools = [make_tool(random.Random(5), "f")]
    whole = ask(server, 5, tools, **ONE_CALL)["message"]["tool_calls"][0]["function"]
    settings: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 1.0, "seed": 5, "tools": tools, **ONE_CALL}
    budget = {"thinking_token_budget": 8}
    with server.client() as client:
        chunks = client.chat.completions.create(**settings, tool_choice="required", stream=True, extra_body=budget)
        deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == whole["name"]
    assert "".join(delta.function.arguments for delta in deltas) == whole["arguments"]
    assert len(deltas) > 2


def test_a_function_that_tags_cannot_hold_is_called_in_json(speaks):
    tool = make_tool(random.Random(1), "f")
    tool["function"]["parameters"] = {
        "type": "object", "properties": {"code": {"type": "string", "pattern": "^[a-z]{2}$"}},
        "required": ["code"], "additionalProperties": False,
    }  # fmt: skip
    (call,) = ask(speaks("qwen3-coder"), 1, [tool], **ONE_CALL)["message"]["tool_calls"]
    check(call, [tool])


def bias_for(server, *marks):
    """Makes the model write nothing but these special tokens, where it may."""
    return {str(server.engine.tokenizer.token_to_id(mark)): 100 for mark in marks}


def test_a_strict_function_is_held_to_its_schema_once_a_call_begins(speaks):
    server = speaks("kimi")
    tool = make_tool(random.Random(2), "f")
    tool["function"]["strict"] = True
    begun = {"logit_bias": bias_for(server, "<|tool_calls_section_begin|>"), "tool_choice": "auto"}
    choice = ask(server, 1, [tool], **ONE_CALL, **begun)
    (call,) = choice["message"]["tool_calls"]
    check(call, [tool])
    assert call["id"] == "functions.f:0"


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("kimi", "<|tool_call_end|>"),
        ("harmony", "<|constrain|>"),
        ("json", "<|python_tag|>"),
        ("deepseek-v3", "<｜tool▁sep｜>"),
    ],
)
def test_marks_out_of_place_are_no_content(speaks, name, mark):
    server = speaks(name)
    tools = [make_tool(random.Random(2), "f")]
    fields = {"tool_choice": "auto", "max_tokens": 6, "logit_bias": bias_for(server, mark)}
    assert not ask(server, 1, tools, **fields)["message"]["content"]


@pytest.mark.parametrize("budget", [0, 3])
def test_thinking_ends_with_its_budget_and_the_call_follows(speaks, budget):
    tools = [make_tool(random.Random(3), "f")]
    for seed in range(4):
        server = speaks("hermes", "think")
        answer = server.post(
            "/v1/chat/completions", messages=MESSAGES, temperature=1.0, seed=seed, tools=tools, tool_choice="required",
            thinking_token_budget=budget, **ONE_CALL,
        ).json()  # fmt: skip
        choice = answer["choices"][0]
        check(choice["message"]["tool_calls"][0], tools)
        reasoning = choice["message"].get("reasoning_content", "")
        num_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        # The marks count as reasoning too: a handful of tokens each where they are no tokens of their own.
        assert (num_reasoning > 0) == (reasoning != "") or budget == 0
        assert num_reasoning <= budget + 16


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "objekt"},
        {"type": "object", "properties": 5},
        {"type": "object", "properties": {"a": 5}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [["a"]]},
        {"type": "object", "properties": {"a": {"type": "string", "enum": 5}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "const": 5}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]},
    ],
)
def test_a_schema_that_makes_no_sense_is_the_clients_error(speaks, name, parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    fields: dict[str, Any] = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required", **ONE_CALL}
    error = speaks(name).post("/v1/chat/completions", **fields).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "tools")
