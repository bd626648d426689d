"""What a chat template shows of a model's way of writing, and what the server makes of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atom_core import Tokenizer
from atom_server.output.notation import FORMATS, format_of
from atom_server.output.output_format import OutputFormat
from atom_server.prompts.chat_template import ChatTemplate

# A text of each family's template.
SHOWN = {
    "hermes": "within <tool_call></tool_call> XML tags: {\"name\": ",
    "json": "Respond in the format {\"name\": function name, \"parameters\": ...} <|python_tag|>",
    "mistral-json": "{{- '[TOOL_CALLS] [' }}",
    "mistral": "{{- '[TOOL_CALLS]' + name + '[ARGS]' }}",
    "deepseek-v3": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name}}\n```json\n",
    "deepseek-v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'}}",
    "deepseek-v32": "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"$FUNCTION_NAME\">",
    "deepseek-v4": "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"$TOOL_NAME\">",
    "gemma": "{{- '<start_function_call>call:' + function['name'] + '{' -}}",
    "gemma-4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>",
    "glm-47": "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "qwen3-coder": "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>",
    "minimax": "<minimax:tool_call>\n<invoke name=\"tool-name-1\">",
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>",
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_shows_in_the_template(name):
    assert format_of(SHOWN[name]) == name


def test_reasoning_shows_too_and_both_can_be_set():
    assert OutputFormat.infer("x <think></think>", None).reasoning == ("<think>", "</think>")
    assert OutputFormat.infer("[THINK] [/THINK]", None).reasoning == ("[THINK]", "[/THINK]")
    assert OutputFormat.infer("plain", None) == OutputFormat("json", None)
    assert OutputFormat.infer("</think>", None, calls="glm", reasoning="none") == OutputFormat("glm", None)


def test_only_the_special_tokens_of_the_notation_are_kept():
    texts = {7: "[TOOL_CALLS]", 8: "[ARGS]", 9: "</s>", 3: "[INST]"}
    tokenizer = SimpleNamespace(special_token_ids=frozenset(texts), id_to_token=texts.get)
    output = OutputFormat.infer(SHOWN["mistral"], cast(Tokenizer, tokenizer))
    assert (output.kept_token_ids, output.kept_tokens) == ((7, 8), ("[TOOL_CALLS]", "[ARGS]"))


@pytest.mark.parametrize("output", [{"calls": "harmony"}, {"calls": "hermes", "reasoning": "think"}])
def test_a_constraint_is_on_the_answer_and_not_on_the_thinking(server, writes, output):
    writes(**output)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}}
    thoughts = []
    for seed in range(12):
        message = server.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], seed=seed, max_tokens=200,
            response_format=form, thinking_token_budget=3,
        ).json()["choices"][0]["message"]  # fmt: skip
        assert json.loads(message["content"])["a"] in (1, 2)
        thoughts.append(message.get("reasoning_content"))
    assert any(thoughts)


def test_a_grammar_that_cannot_stand_behind_thinking_is_the_whole_answer(server, writes):
    writes(calls="hermes", reasoning="think")
    before = server.state.template
    server.state.template = ChatTemplate("{{ messages[0].content }}<think>")
    fields = {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}, "max_tokens": 40}
    message = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], **fields).json()
    server.state.template = before
    assert message["choices"][0]["message"]["content"] in ("yes", "no")


def test_reasoning_may_be_left_out_of_the_answer(server, writes):
    writes(calls="harmony")
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "seed": 3}
    fields |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}}}
    shown, hidden = (
        server.post("/v1/chat/completions", **fields, thinking_token_budget=3, include_reasoning=include).json()[
            "choices"
        ][0]["message"]
        for include in (True, False)
    )
    assert hidden["content"] == shown["content"]
    assert "reasoning_content" not in hidden


@pytest.mark.parametrize(
    ("calls", "effort", "prompt"),
    [("hermes", "high", "high hi"), ("hermes", "none", "none Falsehi"), ("harmony", "none", "low Falsehi")],
)
def test_the_effort_reaches_the_template(server, writes, calls, effort, prompt):
    writes(calls=calls)
    before = server.state.template
    server.state.template = ChatTemplate("{{ reasoning_effort }} {{ enable_thinking }}{{ messages[0].content }}")
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    usage = server.post("/v1/chat/completions", **fields, reasoning_effort=effort).json()["usage"]
    server.state.template = before
    assert usage["prompt_tokens"] == len(server.engine.tokenizer.encode(prompt, add_special_tokens=False))
