"""A checkpoint that declares how its replies are read: what of the server's own formats it replaces, and what not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_core import Tokenizer
from atom_core.config import ConfigError
from atom_server import ServerOptions
from atom_server.output.notation import NOTATIONS, BareKeysStyle, TaggedStyle
from atom_server.output.output_format import OutputFormat
from atom_server.output.parts import assemble
from atom_server.output.response_template import ResponseTemplate, notation_of, reasoning_marks
from atom_server.output.response_template.pattern_text import Group, pieces_of
from atom_server.startup import load_response_template
from response_templates import SCHEMA, TEMPLATES
from tiny_models import make_tiny_llama

QWEN = TEMPLATES["qwen"]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def read(output: OutputFormat, text: str, schemas: Any = None, prompt: str = "") -> Any:
    parser = output.parser(schemas or {}, prompt, reads_reasoning=True, as_json=False)
    assert parser is not None
    return assemble(parser.feed(text) + parser.finish())


def test_it_says_more_than_the_signs_in_the_chat_template():
    output = OutputFormat.infer("{{ '[TOOL_CALLS] [' }}", None, declared=TEMPLATES["gemma"])
    found = read(output, "<|tool_call>call:find{days:1}<tool_call|>", {"find": SCHEMA})
    assert found.calls == [("find", '{"days": 1}')]
    assert output.reasoning == ("<|channel>thought\n", "<channel|>")
    assert isinstance(output.notation.style, BareKeysStyle)


def test_formats_that_are_named_say_more_than_it():
    for named in ({"calls": "glm"}, {"reasoning": "none"}):
        assert OutputFormat.infer("", None, declared=QWEN, **named).template is None


def test_gpt_oss_keeps_its_own_parser_which_can_hold_it_to_calls():
    template = "<|start|>assistant<|channel|>analysis<|message|>"
    assert OutputFormat.infer(template, None, declared=TEMPLATES["gpt-oss"]).is_harmony


def test_one_that_cannot_be_followed_is_left_aside_with_a_warning(caplog):
    assert OutputFormat.infer("<tool_call>", None, declared={**QWEN, "version": 7}) == OutputFormat("hermes", None)
    assert "version 7" in caplog.text


def test_without_functions_calls_are_only_text():
    text = 'a <tool_call>{"name": "find", "arguments": {}}</tool_call>'
    assert read(OutputFormat.infer("", None, declared=QWEN), text).content == text


def test_one_that_knows_no_calls_leaves_them_to_the_family():
    fields = {name: entry for name, entry in QWEN["fields"].items() if name != "tool_calls"}
    output = OutputFormat.infer("<tool_call> </think>", None, declared={**QWEN, "fields": fields})
    text = '<think>hm</think>\n<tool_call>\n{"name": "find", "arguments": {"days": 1}}\n</tool_call>'
    found = read(output, text, {"find": SCHEMA})
    assert (found.reasoning, found.calls) == ("hm", [("find", '{"days": 1}')])
    assert output.notation is NOTATIONS["hermes"]


def test_what_the_prompt_has_begun_is_known():
    prompt = QWEN["start_anchor"] + "<think>\n"
    assert read(OutputFormat.infer("", None, declared=QWEN), "hm</think>so", prompt=prompt).reasoning == "hm"


@pytest.mark.parametrize(
    ("name", "family"), [("smollm", "hermes"), ("qwen", "hermes"), ("qwen-coder", "qwen3-coder"), ("gemma", "gemma-4")]
)
def test_calls_are_enforced_as_the_family_writes_them_where_that_is_read(name, family):
    template = ResponseTemplate.load(TEMPLATES[name])
    assert notation_of(template, NOTATIONS[family]) is NOTATIONS[family]
    derived = notation_of(template, NOTATIONS["kimi"])
    assert derived is not None
    assert derived.trigger in NOTATIONS[family].begin + NOTATIONS[family].call + derived.call


def test_other_notations_are_derived_from_the_template():
    found = {name: notation_of(ResponseTemplate.load(declared), None) for name, declared in TEMPLATES.items()}
    assert {name for name, notation in found.items() if notation is None} == {"lines"}
    assert (found["cohere"].begin, found["cohere"].name_key) == ("<|START_ACTION|>[", "tool_name")
    assert found["gpt-oss"].call == "<|channel|>commentary to=functions."
    assert (found["blocks"].call, found["blocks"].arguments_key) == ("<|content_invoke_tool_json|>", "args")
    assert found["values"].style == TaggedStyle("<", "=", "", "/>")


def test_marks_of_reasoning_are_those_that_are_read_as_such():
    assert reasoning_marks(ResponseTemplate.load(TEMPLATES["cohere"])) == ("<|START_THINKING|>", "<|END_THINKING|>")
    assert reasoning_marks(ResponseTemplate.load(TEMPLATES["ernie"])) == ("", "</think>")
    assert reasoning_marks(ResponseTemplate.load(TEMPLATES["lines"])) is None


def test_where_every_reply_begins_with_thoughts_the_prompt_has_begun_them():
    output = OutputFormat.infer("", None, declared=TEMPLATES["ernie"])
    assert output.is_thinking("Assistant: ")
    assert output.is_thinking("Assistant: <think>\n")
    assert not output.is_thinking("Assistant: <think>hm</think>\n")


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        (r"\s*<tool_call>\s*<f=(?P<name>[^>\n]+)>", ["<tool_call><f=", Group("name"), ">"]),
        (r"(?:\^|b)a+\n", ["^a\n"]),
        (r"(?P<one>.)b(?P<two>c)(?:d)\.", [Group("one"), "b", Group("two"), "d."]),
        (r"(?P<three>(?:a)b)c", [Group("three"), "c"]),
        (r"a??b*+c+?d?", ["c"]),
        (r"a\b\t[]x]?", ["a\t"]),
        (r"(|a)b", ["ab"]),
        (r"(?:<m>)?[^<]*<t\|>$", ["<t|>"]),
        (r"a(b|c)\s+", ["ab\n"]),
        (r"a.b", None),
        (r"(?=a)b", None),
        (r"a{2}", None),
        (r"(a", None),
    ],
)
def test_a_plain_pattern_stands_for_a_text(pattern, pieces):
    assert pieces_of(pattern) == pieces


def test_a_file_may_take_its_place_and_is_read_at_the_start(tmp_path):
    path = tmp_path / "template.json"
    path.write_text(json.dumps(QWEN))
    assert load_response_template(None, str(path)) == QWEN
    assert load_response_template(None, "none") is None
    path.write_text('{"fields": {}}')
    with pytest.raises(ConfigError, match="--response-template"):
        load_response_template(None, str(path))
    with pytest.raises(ConfigError, match="No such file"):
        load_response_template(None, str(tmp_path / "none.json"))


def test_a_checkpoint_brings_it_in_its_tokenizers_configuration(make_server, tmp_path):
    folder = make_tiny_llama(tmp_path / "tiny")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": TEMPLATES["values"]}))
    assert Tokenizer.from_folder(folder).response_template == TEMPLATES["values"]
    with make_server(ServerOptions(served_model_name="tiny"), model=folder) as server:
        assert server.state.output_format.template is not None
        declared, plain = [], []
        for told in (declared, plain):
            for seed in range(4):
                answer = server.post("/v1/chat/completions", **CHAT, max_tokens=8, seed=seed).json()["choices"][0]
                told.append(answer["message"]["content"])
            server.state.output_format = OutputFormat("json", None)
    assert declared == [text.strip() for text in plain] != [""] * 4


@pytest.mark.parametrize("name", ["qwen", "cohere", "ernie"])
def test_a_constraint_is_on_the_answer_and_not_on_the_thinking(server, writes, name):
    writes(declared=TEMPLATES[name])
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(6):
        fields = {"seed": seed, "max_tokens": 200, "thinking_token_budget": 3, "response_format": form}
        message = server.post("/v1/chat/completions", **CHAT, **fields).json()["choices"][0]["message"]
        assert json.loads(message["content"])["a"] in (1, 2)
