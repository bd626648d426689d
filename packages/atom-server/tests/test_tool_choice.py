"""Which tools may be called in a turn, and how many calls there are."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError

from atom_core.structured_output.constraints.checking import check_grammar
from atom_server.output import enforcement
from atom_server.output.enforcement import MAX_CALLS, as_constraint, required_calls
from atom_server.output.notation import NOTATIONS
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.fields.tools import Tool

MESSAGES = [{"role": "user", "content": "hello"}]
# Nothing to fill in: a call is short.
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in "fgh"]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions}}


def call(client, **fields):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 200, "seed": 3, "parallel_tool_calls": False}
    return client.chat.completions.create(**(settings | fields))


def body_of(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": MESSAGES, "tools": TOOLS, **fields})


@pytest.mark.parametrize("seed", range(4))
def test_one_of_the_allowed_tools_is_called_where_one_has_to_be(client, seed):
    answer = call(client, tools=TOOLS, tool_choice=allowed("required", "g", "h"), seed=seed).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert {made.function.name for made in answer.message.tool_calls} <= {"g", "h"}


def test_with_the_mode_auto_the_model_may_just_speak_and_is_told_of_the_allowed_tools_alone(client):
    assert call(client, tools=TOOLS, tool_choice=allowed("auto", "g"), max_tokens=4).choices[0].message.content
    body = body_of(tool_choice=allowed("auto", "h", "f"))
    assert not body.is_call_enforced
    assert [tool["function"]["name"] for tool in body.template_variables()["tools"]] == ["f", "h"]


def test_responses_spell_allowed_tools_their_own_way(client):
    tools: Any = [{"type": "function", "name": name} for name in "fgh"]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    fields: Any = {"max_output_tokens": 300, "parallel_tool_calls": False}
    response = client.responses.create(model="tiny", input="hello", tools=tools, tool_choice=choice, **fields)
    assert [item.name for item in response.output if item.type == "function_call"] == ["g"]
    assert response.tool_choice.model_dump(exclude_none=True) == choice


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("required", "x"), "tool_choice"),
        (allowed("sometimes", "f"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    ],
    ids=["an unknown name", "an unknown mode", "no tools", "nothing at all"],
)
def test_a_choice_that_makes_no_sense_names_its_field(client, choice, param):
    with pytest.raises(BadRequestError) as caught:
        call(client, tools=TOOLS, tool_choice=choice)
    assert caught.value.param == param


def test_a_model_that_has_to_call_cannot_go_on_for_ever(server, monkeypatch):
    monkeypatch.setattr(enforcement, "MAX_CALLS", 3)
    separator = server.engine.tokenizer.encode("; ", add_special_tokens=False)[0]
    with server.client() as client:
        fields: Any = {
            "tools": TOOLS[:1],
            "tool_choice": "required",
            "max_tokens": 300,
            "logit_bias": {separator: 100},
        }
        several = call(client, parallel_tool_calls=True, **fields).choices[0]
        one = call(client, parallel_tool_calls=False, **fields).choices[0]
    assert (several.finish_reason, len(several.message.tool_calls)) == ("tool_calls", 3)
    assert (one.finish_reason, len(one.message.tool_calls)) == ("tool_calls", 1)


@pytest.mark.parametrize("name", NOTATIONS)
def test_every_notation_bounds_the_calls_of_a_turn(name):
    form = required_calls(NOTATIONS[name], [Tool.model_validate(TOOLS[0])], several=True)
    assert f"'max_tags': {MAX_CALLS}" in str(form)
    check_grammar(as_constraint(form), "llguidance")
