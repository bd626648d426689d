"""Parsers of generated text: each family's notation is read, and whatever the pieces, the whole is the same."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_server.output.call_object import JsonValue
from atom_server.output.call_parser import CallParser
from atom_server.output.harmony import HarmonyParser
from atom_server.output.notation import NOTATIONS
from atom_server.output.parts import Assembled, assemble
from atom_server.output.plain_json import JsonParser
from atom_server.output.reasoning import MARKERS, ReasoningParser
from atom_server.output.response_template.notation import written_calls

NAMES = ("f", "g")
ARGUMENTS = '{"a": "}\\"{ <x>", "b": [1, {"c": null}]}'
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "note": {"type": ["string", "null"]}, "tags": {"$ref": "#/$defs/tags"},
    },
    "$defs": {"tags": {"type": "array", "items": {"type": "string"}}},
}  # fmt: skip
VALUES = '{"city": "A \\"b\\"\\n < c", "days": 3, "exact": true, "note": "5", "tags": ["x"]}'


def calls_of(name):
    return lambda: CallParser(NOTATIONS[name], {"f": SCHEMA}, strays=("<|stray|>",))


def json_parser():
    return JsonParser(NAMES)


def thinking(is_open=False):
    return lambda: ReasoningParser("<think>", "</think>", calls_of("hermes")(), is_open=is_open)


CALL = f'{{"name": "f", "arguments": {ARGUMENTS}}}'
TWO = [("f", ARGUMENTS), ("g", "{}")]
TAGGED = [("f", VALUES), ("g", "{}")]
CASES = {
    "hermes": (
        calls_of("hermes"), f"Now <b>\n<tool_call>\n{CALL}\n</tool_call>", ("Now <b>\n", "", [("f", ARGUMENTS)]),
    ),
    "two hermes calls": (
        calls_of("hermes"),
        f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"arguments": {{"x": 1}}, "name": "g"}}</tool_call>',
        ("", "", [("f", ARGUMENTS), ("g", '{"x": 1}')]),
    ),
    "a hermes call without arguments": (
        calls_of("hermes"), '<tool_call>{"name": "g"}</tool_call>\nso', ("so", "", [("g", "{}")]),
    ),
    "text like a mark": (calls_of("hermes"), "1 <tool_cal", ("1 <tool_cal", "", [])),
    "special tokens in the text": (calls_of("hermes"), "a<|stray|>b", ("ab", "", [])),
    "llama": (json_parser, f'<|python_tag|>{CALL.replace("arguments", "parameters")}', ("", "", [("f", ARGUMENTS)])),
    "a list": (
        json_parser, f' [{CALL}, {{"name": "g", "parameters": {{}}}}]', ("", "", TWO),
    ),
    "a list, the second call without arguments": (json_parser, f'[{CALL}, {{"name": "g"}}]', ("", "", TWO)),
    "another function": (json_parser, '{"name": "h", "x": 1} so', ('{"name": "h", "x": 1} so', "", [])),
    "other json": (json_parser, '{"x": 1}', ('{"x": 1}', "", [])),
    "a call with numbers and words beside it": (
        calls_of("hermes"), f'<tool_call>{{"id": 12, "name": "f", "x": true, "arguments": {ARGUMENTS}}}</tool_call>',
        ("", "", [("f", ARGUMENTS)]),
    ),
    "arguments that are none": (
        calls_of("hermes"), '<tool_call>{"arguments": null, "name": "g"}</tool_call>', ("", "", [("g", "{}")]),
    ),
    "arguments that are a number": (
        calls_of("hermes"), '<tool_call>{"name": "g", "arguments": 12}</tool_call>', ("", "", [("g", "12")]),
    ),
    "no json": (json_parser, "[note] {yes}", ("[note] {yes}", "", [])),
    "mistral, a list": (calls_of("mistral-json"), f'So[TOOL_CALLS] [{CALL}, {{"name": "g"}}]', ("So", "", TWO)),
    "mistral": (calls_of("mistral"), f"So[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[ARGS]{{}}", ("So", "", TWO)),
    "mistral, the first call without arguments": (
        calls_of("mistral"), f"[TOOL_CALLS]g[TOOL_CALLS]f[ARGS]{ARGUMENTS}", ("", "", TWO[::-1]),
    ),
    "mistral with ids": (calls_of("mistral"), f"[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{ARGUMENTS}", ("", "", TWO[:1])),
    "deepseek v3": (
        calls_of("deepseek-v3"),
        "So<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("So", "", TWO),
    ),
    "deepseek v3.1": (
        calls_of("deepseek-v31"),
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", "", TWO),
    ),
    "kimi": (
        calls_of("kimi"),
        "So<|tool_calls_section_begin|>"
        f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ("So", "", TWO),
    ),
    "glm": (
        calls_of("glm"),
        'So\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>A "b"\n < c</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key><arg_value>True</arg_value>\n"
        "<arg_key>note</arg_key>\n<arg_value>5</arg_value>\n"
        '<arg_key>tags</arg_key>\n<arg_value>["x"]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>',
        ("So\n", "", TAGGED),
    ),
    "qwen3 coder": (
        calls_of("qwen3-coder"),
        'So\n<tool_call>\n<function=f>\n<parameter=city>\nA "b"\n < c\n</parameter>\n'
        "<parameter=days>\n3\n</parameter>\n"
        "<parameter=exact>true</parameter>\n<parameter=note>\n5\n</parameter>\n"
        '<parameter=tags>\n["x"]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ("So\n", "", TAGGED),
    ),
    "minimax": (
        calls_of("minimax"),
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">A "b"\n < c</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="exact">true</parameter>\n'
        '<parameter name="note">5</parameter>\n<parameter name="tags">["x"]</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        ("", "", TAGGED),
    ),
    "deepseek v3.2": (
        calls_of("deepseek-v32"),
        'So\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="city" string="true">A "b"\n < c</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="exact" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="note" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="tags" string="false">["x"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        ("So\n\n", "", TAGGED),
    ),
    "deepseek v4": (
        calls_of("deepseek-v4"),
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="x">\n'
        '<｜DSML｜parameter name="id" string="true">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ("", "", [("x", '{"id": "7"}')]),
    ),
    "function gemma": (
        calls_of("gemma"),
        "So<start_function_call>call:f{city:<escape>A \"b\"\n < c<escape>,days:3,exact:true,note:<escape>5<escape>,"
        "tags:[<escape>x<escape>]}<end_function_call><start_function_call>call:g{}<end_function_call>",
        ("So", "", TAGGED),
    ),
    "gemma 4": (
        calls_of("gemma-4"),
        '<|tool_call>call:f{a:<|"|>}"{ <x><|"|>,b:[1,{<|"|>c<|"|>:null}]}<tool_call|>'
        "<|tool_call>call:g{ }<tool_call|>so",
        ("so", "", TWO),
    ),
    "gemma 4 that writes JSON": (
        calls_of("gemma-4"), f"<|tool_call>call:f{ARGUMENTS}<tool_call|>", ("", "", [("f", ARGUMENTS)]),
    ),
    "gemma 4 with a bare word": (
        calls_of("gemma-4"), "<|tool_call>call:f{a: so , b : 1}<tool_call|>", ("", "", [("f", '{"a": "so", "b": 1}')]),
    ),
    "thoughts of gemma 4": (
        lambda: ReasoningParser(*MARKERS["gemma"], calls_of("gemma-4")()),
        "<|channel>thought\nhm<channel|><|tool_call>call:g{}<tool_call|>",
        ("", "hm", [("g", "{}")]),
    ),
    "harmony": (
        HarmonyParser,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        ("I look.", "hm", [("f", ARGUMENTS)]),
    ),
    "harmony, the recipient first": (
        HarmonyParser, " to=functions.g<|channel|>commentary json<|message|>{}", ("", "", [("g", "{}")]),
    ),
    "harmony, arguments behind white space, and none": (
        HarmonyParser,
        "<|channel|>commentary to=functions.f<|message|> \n{} <|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.g<|message|> \n<|call|>",
        ("", "", [("f", "{} "), ("g", "{}")]),
    ),
    "harmony, an answer behind white space": (
        HarmonyParser, "<|channel|>final<|message|> \nyes<|return|>", (" \nyes", "", []),
    ),
    "harmony, an answer": (
        HarmonyParser,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
        ("yes", "hm", []),
    ),
    "harmony without channels": (HarmonyParser, "plain", ("plain", "", [])),
    "harmony, a first message without a channel": (HarmonyParser, "<|message|>plain", ("plain", "", [])),
    "harmony that ends in its first header": (HarmonyParser, "<|channel|>analysis", ("", "", [])),
    "harmony that ends in what may be a header": (HarmonyParser, " to=functions.f", (" to=functions.f", "", [])),
    "harmony that ends in what may be a mark": (HarmonyParser, "<|chan", ("<|chan", "", [])),
    "harmony that ends in a later header": (
        HarmonyParser, "<|channel|>final<|message|>yes<|end|><|start|>assistant", ("yes", "", []),
    ),
    "harmony with text between messages": (
        HarmonyParser,
        "<|channel|>final<|message|>yes<|end|>\nno<|start|>assistant<|channel|>final<|message|>, yes",
        ("yes, yes", "", []),
    ),
    "harmony to somebody else": (
        HarmonyParser, "<|channel|>commentary to=browser.open<|message|>{}<|call|>", ("{}", "", []),
    ),
    "reasoning": (
        thinking(),
        f"<think>\nhm <b\n</think>\n\nSo<tool_call>{CALL}</tool_call>",
        ("So", "hm <b\n", [("f", ARGUMENTS)]),
    ),
    "reasoning that the prompt began": (thinking(True), "hm</think>yes", ("yes", "hm", [])),
    "no reasoning": (thinking(), " <thin", (" <thin", "", [])),
    "reasoning without an end": (thinking(), "<think>a</thi", ("", "a</thi", [])),
}  # fmt: skip


def parsed(make, pieces) -> Assembled:
    parser = make()
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return assemble(parts + parser.finish())


@pytest.mark.parametrize("case", CASES)
def test_a_text_gives_the_same_whatever_its_pieces(case):
    make, text, (content, reasoning, calls) = CASES[case]
    expected = Assembled(content, reasoning, calls)
    assert parsed(make, [text]) == expected
    assert parsed(make, list(text)) == expected
    for position in range(len(text)):
        assert parsed(make, [text[:position], text[position:]]) == expected


@pytest.mark.parametrize("name", [name for name, notation in NOTATIONS.items() if notation.trigger])
def test_what_is_written_in_a_notation_is_read_in_it(name):
    values = {"city": "A b", "days": 3, "note": "5"}
    calls = [("f", values), ("f", {"city": "3"}), ("f", {})]
    found = parsed(calls_of(name), [written_calls(NOTATIONS[name], calls)])
    assert [(called, json.loads(arguments)) for called, arguments in found.calls] == calls
    assert found.content == ""


def test_every_notation_has_a_case():
    texts = "".join(text for _, text, _ in CASES.values())
    assert all(notation.trigger in texts for notation in NOTATIONS.values())


@pytest.mark.parametrize("name", [*(name for name, notation in NOTATIONS.items() if notation.trigger), "harmony"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_even_a_broken_text_gives_the_same_whatever_its_pieces(name, data):
    make = HarmonyParser if name == "harmony" else calls_of(name)
    sources = [text for case_make, text, _ in CASES.values() if type(case_make()) is type(make())]
    marks = "".join(sources)
    slices = st.integers(0, len(marks) - 1).flatmap(
        lambda start: st.integers(1, 40).map(lambda length: marks[start : start + length])
    )
    text = "".join(data.draw(st.lists(slices, max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert parsed(make, pieces) == parsed(make, [text])


@pytest.mark.parametrize(
    ("make", "begin"),
    [
        (calls_of("hermes"), '<tool_call>{"name": "f", "arguments": {"city": "lo'),
        (calls_of("mistral"), '[TOOL_CALLS]f[ARGS]{"city": "lo'),
        (calls_of("qwen3-coder"), "<tool_call>\n<function=f>\n<parameter=city>\nlo"),
        (HarmonyParser, '<|channel|>commentary to=functions.f<|message|>{"city": "lo'),
    ],
)
def test_arguments_stream_before_their_end(make, begin):
    assert assemble(make().feed(begin)).calls == [("f", '{"city": "lo')]


def test_a_harmony_text_says_whether_it_ends_inside_the_reasoning():
    parser, found = HarmonyParser(), []
    for piece in (
        "<|channel|>analysis",
        "<|message|>",
        "hm",
        "<|end|>",
        "<|start|>assistant<|channel|>final",
        "<|message|>yes",
    ):
        parser.feed(piece)
        found.append(parser.is_reasoning)
    assert found == [False, True, True, False, False, False]


def random_harmony(source) -> str:
    """Messages in all channels, in any order."""
    heads = [
        "<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.g <|constrain|>json<|message|>",
    ]  # fmt: skip
    messages = [
        source.choice(heads) + "w" + "".join(source.choice(["a ", "{x}", "<", "|>", "\n", "é"]) for _ in range(5))
        for _ in range(source.randint(1, 5))
    ]
    return "<|end|><|start|>assistant".join(messages) + source.choice(["", "<|return|>", "<|call|>"])


def test_the_harmony_parser_agrees_with_the_vendors():
    harmony = pytest.importorskip("openai_harmony")
    encoding = harmony.load_harmony_encoding("HarmonyGptOss")
    known = [CASES[name][1] for name in ("harmony", "harmony, an answer")]
    for text in [*known, *(random_harmony(random.Random(seed)) for seed in range(60))]:
        parser = harmony.StreamableParser(encoding, role=harmony.Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        parser.process_eos()
        theirs = Assembled()
        for message in parser.messages:
            body = "".join(part.text for part in message.content)
            if message.recipient and message.recipient.startswith("functions."):
                theirs.calls.append((message.recipient.removeprefix("functions."), body))
            elif message.channel == "analysis":
                theirs.reasoning += body
            else:
                theirs.content += body
        assert parsed(HarmonyParser, list(text)) == theirs, text


def test_tagged_values_parse_as_json_whatever_they_hold():
    text = CASES["glm"][1].replace("<arg_value>3<", "<arg_value>NaN<")
    _, (name, arguments) = assemble([]), parsed(calls_of("glm"), [text]).calls[0]
    assert (name, json.loads(arguments)["days"]) == ("f", "NaN")


# All that is printed but a backslash, which means something within strings alone.
PRINTED = [chr(code) for code in range(32, 127) if chr(code) != "\\"]


def test_what_is_no_bracket_and_no_quotation_mark_leaves_an_object_open():
    for character in PRINTED:
        value = JsonValue("{")
        if character not in '{}[]"':
            assert not value.ends_with(character)
            assert value.ends_with("}"), character


def test_values_that_begin_with_a_bracket_or_a_quotation_mark_have_an_end_of_their_own():
    assert [each for each in PRINTED if not JsonValue(each).is_scalar] == ['"', "[", "{"]
    assert [each for each in PRINTED if JsonValue(each).ends_with("]")] == ["[", "{"]
