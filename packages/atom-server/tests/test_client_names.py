"""Errors and headers name fields as the client wrote them, whatever the engine calls them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from atom_core import InvalidRequestError
from atom_server.bodies.client_names import MESSAGES as MESSAGES_NAMES
from atom_server.bodies.client_names import RESPONSES, Names, named_as, renamed
from atom_server.errors import APIError

TURNS = [{"role": "user", "content": "hello"}]
LONG = "word " * 20_000
SCHEMA = {"type": "json_schema", "schema": {"type": "objct"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "objct"}}
MANY = [{"role": "user", "content": LONG}]
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a long input": ("responses", {"input": LONG}, "input"),
    "many tokens": ("responses", {"input": "a", "max_output_tokens": 10**6}, "max_output_tokens"),
    "a bad schema": ("responses", {"input": "a", "text": {"format": {**SCHEMA, "name": "x"}}}, "text.format"),
    "no name": ("responses", {"input": "a", "text": {"format": {**SCHEMA, "name": 5}}}, "text.format.name"),
    "no format": ("responses", {"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
    "a bad function": ("responses", {"input": "a", "tools": [FUNCTION], "tool_choice": "required"}, "tools"),
    "long messages": ("messages", {"messages": MANY, "max_tokens": 5}, "messages"),
    "many tokens of a message": ("messages", {"messages": TURNS, "max_tokens": 10**6}, "max_tokens"),
    "a bad schema of a message": (
        "messages",
        {"messages": TURNS, "max_tokens": 5, "output_config": {"format": SCHEMA}},
        "output_config.format",
    ),
    "a long chat": ("chat/completions", {"messages": MANY}, "messages"),
    "many tokens of a chat": (
        "chat/completions",
        {"messages": TURNS, "max_completion_tokens": 10**6},
        "max_completion_tokens",
    ),
    "a long prompt": ("completions", {"prompt": LONG}, "prompt"),
}


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_field_that_the_client_sent(server, path, fields, param):
    answer = server.post(f"/v1/{path}", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert param.partition(".")[0] in fields
    unknown = {"max_tokens", "response_format", "'messages'", "structured_outputs"} - set(fields)
    assert [name for name in unknown if name in error["message"].replace("max_completion_tokens", "")] == []


def test_a_functions_bad_schema_is_told_as_one(server):
    body = {"messages": TURNS, "tools": [{"function": {"name": "f", "parameters": {"type": "objct"}}}]}
    error = server.post("/v1/chat/completions", **body, tool_choice="required").json()["error"]
    assert error["message"] == "tools: the schema of a function is not valid: Invalid type: objct"


def test_only_names_are_changed_in_a_message():
    with pytest.raises(APIError) as caught, named_as(RESPONSES):
        raise APIError(400, "'messages' of many messages need max_tokens", param="messages[0].content", code="x")
    error = caught.value
    assert error.message == "'input' of many messages need max_output_tokens"
    assert (error.param, error.code) == ("input[0].content", "x")


@pytest.mark.parametrize(
    ("param", "named"),
    [
        (None, None),
        ("", ""),
        ("[0].messages", "[0].messages"),
        ("tools[0].messages", "tools[0].messages"),
        ("messages", "input"),
        ("messages[1]-x", "input[1]-x"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format.type.json_schema", "text.format.type.json_schema"),
    ],
)
def test_of_a_path_the_first_name_is_changed(param: str | None, named: str | None):
    assert renamed(APIError(400, "no", param=param), RESPONSES).param == named


# What a route calls the fields of a chat completion.
CALLED = {
    "responses": {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "tools": "tools",
    },
    "messages": {
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking.budget_tokens",
        "chat_template_kwargs": "thinking",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "max_tokens": "max_tokens",
    },
}


@pytest.mark.parametrize(("names", "route"), [(RESPONSES, "responses"), (MESSAGES_NAMES, "messages")])
def test_every_field_has_the_name_that_its_route_gives_it(names: Names, route: str):
    for ours, theirs in CALLED[route].items():
        error = renamed(InvalidRequestError(f"'{ours}' is wrong", ours, "odd"), names)
        assert isinstance(error, InvalidRequestError)
        assert (error.message, error.param, error.code) == (f"'{theirs}' is wrong", theirs, "odd")


def test_an_answer_with_an_error_keeps_its_status_and_its_headers():
    error = renamed(APIError(429, "wait", param="messages", code="busy", headers={"retry-after": "3"}), RESPONSES)
    assert isinstance(error, APIError)
    assert (error.status, error.param, error.code, error.headers) == (429, "input", "busy", {"retry-after": "3"})


def test_other_errors_pass_as_they_are():
    with pytest.raises(KeyError), named_as(MESSAGES_NAMES):
        raise KeyError("messages")


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/chat/completions", {"messages": TURNS, "thinking_token_budget": 3}, "thinking_token_budget"),
        ("/v1/responses", {"input": "a", "thinking_token_budget": 3}, "thinking_token_budget"),
        (
            "/v1/messages",
            {"messages": TURNS, "thinking": {"type": "enabled", "budget_tokens": 3}},
            "thinking.budget_tokens",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_thinking_budget_of_a_model_that_does_not_think_is_named_as_ignored(server, path, fields, name, stream):
    length = {"max_output_tokens": 2} if path == "/v1/responses" else {"max_tokens": 2}
    answer = server.post(path, **fields, **length, stream=stream, colour="red")
    assert answer.status_code == 200
    assert answer.headers["x-atom-ignored-fields"] == f"colour, {name}"


def test_a_thinking_budget_that_counts_is_not_named(server):
    before = server.state.output_format
    kind = type(before)
    server.state.output_format = kind.infer("", server.engine.tokenizer, calls="hermes", reasoning="think")
    try:
        answer = server.post("/v1/chat/completions", messages=TURNS, thinking_token_budget=3, max_tokens=2)
    finally:
        server.state.output_format = before
    assert "x-atom-ignored-fields" not in answer.headers


def test_what_only_the_engine_can_refuse_names_the_clients_field_too(server):
    tag = {"type": "structural_tag", "format": {"type": "token", "token": "<no such token>"}}
    error = server.post("/v1/chat/completions", messages=TURNS, response_format=tag, max_tokens=2).json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "invalid_grammar")
    answer = server.post("/v1/responses", input="a", text={"format": tag})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "text.format")
    assert error["message"].startswith("text.format: structural_tag is not valid: ")
    assert "<no such token>" in error["message"]


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}], ids=["streamed", "in the background"])
def test_a_response_that_only_the_engine_can_refuse_fails_with_the_reason(client, fields):
    tag = {"type": "structural_tag", "format": {"type": "token", "token": "<no such token>"}}
    made = client.responses.create(model="tiny", input="a", extra_body={"text": {"format": tag}}, **fields)
    if "stream" in fields:
        failed = list(made)[-1].response
    else:
        deadline = time.monotonic() + 30
        while (failed := client.responses.retrieve(made.id)).status == "in_progress" and time.monotonic() < deadline:
            time.sleep(0.05)
    assert (failed.status, failed.error.code) == ("failed", "invalid_prompt")
    assert failed.error.message.startswith("text.format: structural_tag is not valid: ")
