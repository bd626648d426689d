"""Response templates beside transformers' own parser: the same message, whatever pieces the text comes in."""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import pytest

from atom_server.output.harmony import HarmonyParser
from atom_server.output.parts import Assembled, assemble
from atom_server.output.response_template import (
    ResponseTemplate,
    ResponseTemplateError,
    TemplateParser,
    answer_marks,
    reasoning_marks,
)
from atom_server.output.response_template.values import parse_content
from response_templates import NAMES, SCHEMA, TEMPLATES, TOOLS, random_reply

chat_parsing = pytest.importorskip("transformers.utils.chat_parsing")
SCHEMAS = dict.fromkeys(NAMES, SCHEMA)


def theirs(declared, prompt, text, tools=None) -> Assembled:
    message = chat_parsing.parse_response(text, declared, prefix=prompt, tools=tools)
    calls = message.get("tool_calls", [])
    calls = [call for entry in calls for call in (entry if isinstance(entry, list) else [entry])]
    told = [(call["function"]["name"], json.dumps(call["function"]["arguments"])) for call in calls]
    reasoning = message.get("thinking") or message.get("reasoning_content") or ""
    return Assembled(message.get("content") or "", reasoning, told)


def ours(declared, prompt, pieces, schemas=None) -> Assembled:
    parser = TemplateParser(ResponseTemplate.load(declared), prompt, schemas)
    found = assemble([part for piece in pieces for part in parser.feed(piece)] + parser.finish())
    return Assembled(
        found.content, found.reasoning, [(name, json.dumps(json.loads(text))) for name, text in found.calls]
    )


def pieces_of(text, source) -> list[str]:
    cuts = sorted(source.randrange(len(text) + 1) for _ in range(source.randrange(12)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("seed", range(40))
def test_a_reply_is_read_as_transformers_reads_it(name, seed):
    source = random.Random(f"{name}{seed}")
    prompt, text, calls = random_reply(name, source)
    expected = theirs(TEMPLATES[name], prompt, text)
    assert len(expected.calls) == len(calls)
    for pieces in ([text], list(text), pieces_of(text, source)):
        assert ours(TEMPLATES[name], prompt, pieces) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_with_the_schemas_of_functions_every_value_has_its_type(name):
    for seed in range(20):
        prompt, text, calls = random_reply(name, random.Random(seed))
        found = ours(TEMPLATES[name], prompt, list(text), SCHEMAS)
        assert [(function, json.loads(values)) for function, values in found.calls] == calls
        assert found == theirs(TEMPLATES[name], prompt, text, TOOLS)


def test_of_two_marks_that_begin_at_one_place_the_longer_counts():
    declared = {
        "start_anchor": "<turn>",
        "fields": {
            "content": {"open": "<a>", "close": "</a>"},
            "reasoning": {"open": "<a><b>", "close": "</a>"},
        },
    }
    for pieces in (["<a><b>x</a><a>y</a>"], list("<a><b>x</a><a>y</a>")):
        assert ours(declared, "<turn>", pieces) == Assembled("y", "x", [])


def test_the_templates_that_transformers_itself_serves_with_are_read_like_ours():
    utils = pytest.importorskip("transformers.cli.serving.utils")
    names = {"qwen2": "qwen", "qwen3_5": "qwen-coder", "gemma4": "gemma"}
    served = {names[types[0]]: declared for types, declared in utils._RESPONSE_TEMPLATE_FALLBACKS.items()}
    assert set(served) == set(names.values())
    for (name, declared), seed in itertools.product(served.items(), range(20)):
        source = random.Random(seed)
        prompt, text, _ = random_reply(name, source)
        assert ours(declared, prompt, pieces_of(text, source), SCHEMAS) == theirs(declared, prompt, text, TOOLS)


def test_the_parser_of_gpt_oss_reads_what_its_response_template_reads():
    for seed in range(40):
        prompt, text, _ = random_reply("gpt-oss", random.Random(seed))
        parser = HarmonyParser()
        found = assemble([part for piece in text for part in parser.feed(piece)] + parser.finish())
        expected = theirs(TEMPLATES["gpt-oss"], prompt, text)
        assert (found.content, found.reasoning) == (expected.content, expected.reasoning)
        assert [(name, json.loads(told)) for name, told in found.calls] == [
            (name, json.loads(told)) for name, told in expected.calls
        ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_that_breaks_off_anywhere_is_the_same_in_any_pieces(name):
    source = random.Random(name)
    prompt, text, _ = random_reply(name, source)
    template = ResponseTemplate.load(TEMPLATES[name])
    for end in range(0, len(text), 3):
        wholes = []
        for pieces in ([text[:end]], list(text[:end]), pieces_of(text[:end], source)):
            parser = TemplateParser(template, prompt)
            wholes.append(assemble([part for piece in pieces for part in parser.feed(piece)] + parser.finish()))
        assert wholes[0] == wholes[1] == wholes[2]


@pytest.mark.parametrize("name", TEMPLATES)
def test_even_a_broken_text_is_the_same_in_any_pieces_after_any_prompt(name):
    template = ResponseTemplate.load(TEMPLATES[name])
    for seed in range(60):
        source = random.Random(f"{name}{seed}")
        prompt, text, _ = random_reply(name, source)
        starts = [source.randrange(len(text) + 1) for _ in range(6)]
        broken = "".join(text[start : start + source.randrange(40)] for start in starts)
        prompt += text[: source.choice([0, source.randrange(30)])]
        wholes = []
        for pieces in ([broken], list(broken), pieces_of(broken, source)):
            parser = TemplateParser(template, prompt, SCHEMAS)
            wholes.append(assemble([part for piece in pieces for part in parser.feed(piece)] + parser.finish()))
        assert wholes[0] == wholes[1] == wholes[2]


@pytest.mark.parametrize(
    ("name", "begin", "told"),
    [
        ("qwen", '<tool_call>\n{"name": "find", "arguments": {"city": "Par', '{"city": "Par'),
        ("gemma", '<|tool_call>call:find{city:<|"|>Par', '{"city": "Par'),
        ("cohere", '<|START_ACTION|>[{"tool_name": "find", "parameters": {"city": "Par', '{"city": "Par'),
        ("qwen-coder", "<tool_call><function=find><parameter=city>Paris</parameter><para", '{"city": "Paris"'),
        ("gpt-oss", '<|channel|>commentary to=functions.find<|message|>{"city": "Par', '{"city": "Par'),
    ],
)
def test_arguments_are_told_before_their_call_is_whole(name, begin, told):
    parser = TemplateParser(ResponseTemplate.load(TEMPLATES[name]), "", SCHEMAS)
    assert assemble(parser.feed(begin)).calls == [("find", told)]


def test_content_comes_word_by_word_and_only_what_may_be_a_mark_waits():
    parser = TemplateParser(ResponseTemplate.load(TEMPLATES["qwen"]), "")
    told = [assemble(parser.feed(piece)).content for piece in ("\n Hi", " you", " ", "<tool", "s", " >")]
    assert told == ["Hi", " you", "", "", " <tools", " >"]


def test_what_the_prompt_has_said_of_the_turn_is_no_news():
    template = ResponseTemplate.load(TEMPLATES["qwen"])
    anchor = TEMPLATES["qwen"]["start_anchor"]
    for end, text, expected in (
        ("Hello ", "you", Assembled("you")),
        ("Hello<tool", "s", Assembled("s")),
        ("<think>so ", "far</think>yes", Assembled("yes", "far")),
        ('<tool_call>{"name": "f"', "}</tool_call>after", Assembled("after")),
        ("<tool_", 'call>{"name": "f"}</tool_call>', Assembled(calls=[("f", "{}")])),
        ("<tool_call>", '{"name": "f"}</tool_call>so', Assembled("so", calls=[("f", "{}")])),
    ):
        parser = TemplateParser(template, f"{anchor}earlier<|im_end|>\n{anchor}{end}")
        assert parser.is_reasoning == end.startswith("<think>")
        assert assemble(parser.feed(text) + parser.finish()) == expected


def test_a_prompt_without_the_beginning_of_a_turn_says_nothing():
    parser = TemplateParser(ResponseTemplate.load(TEMPLATES["qwen"]), "a user who writes <think>")
    assert assemble(parser.feed("yes")) == Assembled("yes")


def test_text_that_goes_on_after_a_call_is_kept_on_a_line_of_its_own():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert ours(TEMPLATES["smollm"], "", [f"one\n{call}\n{call}\ntwo"]) == Assembled("one\ntwo", "", [("f", "{}")] * 2)


def test_white_space_after_an_answer_does_not_undo_it():
    assert theirs(TEMPLATES["qwen"], "", "yes<|im_end|>\n").content == ""
    assert ours(TEMPLATES["qwen"], "", ["yes<|im_end|>\n"]).content == "yes"


def test_a_mark_within_a_string_of_json_ends_no_call():
    text = '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>yes'
    with pytest.raises(ValueError, match="could not parse"):
        theirs(TEMPLATES["qwen"], "", text)
    assert ours(TEMPLATES["qwen"], "", list(text)) == Assembled("yes", "", [("f", '{"x": "</tool_call>"}')])


def test_a_text_parameter_stays_text_even_where_it_looks_like_a_number():
    text = "<call:find><city=75/><days=75/></call>"
    assert json.loads(ours(TEMPLATES["values"], "", [text], SCHEMAS).calls[0][1]) == {"city": "75", "days": 75}


@pytest.mark.parametrize(
    "text", ["<tool_call>what?</tool_call>", '<tool_call>["f"]</tool_call>', "<tool_call></tool_call>"]
)
def test_a_call_that_does_not_parse_is_left_out(text):
    assert ours(TEMPLATES["qwen"], "", [f"one {text} two"]) == Assembled("one\ntwo")


def test_a_reply_without_any_mark_is_an_answer():
    for name in ("cohere", "blocks", "gpt-oss"):
        assert ours(TEMPLATES[name], "", list("just\nso ")) == Assembled("just\nso")
    text = "lost<|START_RESPONSE|>yes<|END_RESPONSE|>lost"
    prompt = "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"
    assert ours(TEMPLATES["cohere"], prompt, [text]) == theirs(TEMPLATES["cohere"], prompt, text) == Assembled("yes")


def test_a_template_without_a_field_for_answers_gives_them_what_is_left():
    declared = {"start_anchor": "B:", "fields": {"thinking": {"open": "<think>", "close": "</think>"}}}
    assert ours(declared, "", ["<think>hm</think>so"]) == Assembled("so", "hm")


def test_fields_of_other_names_are_not_told():
    assert ours(TEMPLATES["lines"], "", ["a<score>7</score>b"]) == Assembled("a\nb")


def test_an_answer_of_another_kind_is_told_as_json_and_as_text_where_it_is_none():
    content = {"open": "<a>", "close": "</a>", "content": "json", "repeats": True, "transform": {"it": "{content}"}}
    declared = {"start_anchor": "B:", "fields": {"content": content}}
    assert ours(declared, "", ["<a>[1]</a> <a> x </a>"]) == Assembled('{"it": [1]}\nx')


TAGS = {"tag_pattern": r"<(?P<key>\w+)>(?P<value>[^<]*)"}


@pytest.mark.parametrize(
    ("name", "args", "text", "value"),
    [
        ("text", {}, " a ", "a"),
        ("text", {"strip": False}, " a ", " a "),
        ("int", {}, " 7 ", 7),
        ("float", {}, " .5 ", 0.5),
        ("bool", {}, " TRUE ", True),
        ("bool", {}, "1", True),
        ("bool", {}, "yes", False),
        ("json", {}, " [1.0] ", [1.0]),
        ("json", {"allow_non_json": True}, " so { ", "so {"),
        ("kv-lines", {}, "a: 1\nb\nc:d:e", {"a": "1", "c": "d:e"}),
        ("kv-lines", {"kv_sep": "=", "line_sep": ";", "value_parser": {"name": "int"}}, "a=1;b = 2", {"a": 1, "b": 2}),
        ("xml-inline", TAGS, "<a>1<b>2<a>3", {"a": "3", "b": "2"}),
        ("xml-inline", TAGS | {"merge_duplicates": True}, "<a>1<b>2<a>3<a>", {"a": ["1", "3", ""], "b": "2"}),
    ],
)
def test_the_text_of_a_field_has_the_value_that_its_parser_says(name, args, text, value):
    assert parse_content(text, name, args) == value


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("json", {}, "Expecting value"),
        ("int", {}, "invalid literal"),
        ("xml-inline", {}, "'tag_pattern' needs a group 'key'"),
        ("xml-inline", {"tag_pattern": "<(a)>"}, "'tag_pattern' needs a group 'key'"),
        ("xml-inline", {"tag_pattern": "(?P<key>"}, "missing"),
    ],
)
def test_a_text_without_a_value_and_a_pattern_that_is_none_are_refused(name, args, reason):
    with pytest.raises(ValueError, match=reason):
        parse_content("so", name, args)


DELIMITED = {"string_delims": [["<", ">"]], "unquoted_keys": True}


def test_texts_between_delimiters_are_strings_whatever_they_hold():
    assert parse_content('{a:<x "y",>,"b":[<>,2]}', "json", DELIMITED) == {"a": 'x "y",', "b": ["", 2]}


@pytest.mark.parametrize("character", ["\x01", "\x02"])
def test_the_characters_that_stand_for_such_strings_meanwhile_are_refused(character):
    with pytest.raises(ValueError, match="it has control characters"):
        parse_content(f"<{character}>", "json", DELIMITED)


def test_a_long_reply_takes_time_in_proportion_to_its_length():
    parser = TemplateParser(ResponseTemplate.load(TEMPLATES["qwen-coder"]), "", SCHEMAS)
    parser.feed("<tool_call><function=find><parameter=city>")
    started = time.thread_time()
    for _ in range(20_000):
        parser.feed("word ")
    parser.feed("</parameter>")
    assert time.thread_time() - started < 5


@pytest.mark.timing
def test_a_pattern_that_takes_too_long_is_given_up():
    fields = {"content": {}, "tool_calls": {"open_pattern": "(a+)+b", "close": "</c>", "content": "json"}}
    declared: Any = {"start_anchor": "B:", "fields": fields}
    text = "a" * 60
    started = time.perf_counter()
    assert ours(declared, "", [text, text]).content == text + text
    assert time.perf_counter() - started < 5


def test_white_space_that_goes_on_and_on_is_not_searched_again_and_again():
    parser = TemplateParser(ResponseTemplate.load(TEMPLATES["qwen"]), "")
    started = time.thread_time()
    told = [parser.feed(piece) for piece in ["\n" * 100_000, *["\n" * 10] * 1000, "x"]]
    assert time.thread_time() - started < 5
    assert assemble(itertools.chain(*told)).content == "x"


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ([], "no object"),
        ({"fields": {"content": {}}}, "start_anchor"),
        ({"start_anchor": "x"}, "fields"),
        ({"start_anchor": "x", "fields": {"content": {}}, "version": 2}, "version 2"),
        ({"start_anchor": "x", "fields": {"content": {}}, "else": 1}, "unknown keys: else"),
        ({"start_anchor": "x", "fields": {"content": {"opens": "x"}}}, "unknown keys: opens"),
        ({"start_anchor": "x", "fields": {"content": {}, "thinking": {}}}, "more than one"),
        ({"start_anchor": "x", "fields": {"content": {"open": "a", "open_pattern": "a"}}}, "both"),
        ({"start_anchor": "x", "fields": {"content": {"open": ""}}}, "list of texts"),
        ({"start_anchor": "x", "fields": {"content": {"open_pattern": "("}}}, "no regular expression"),
        ({"start_anchor": "x", "fields": {"content": {"open_pattern": "(?P<n>a)"}}}, "needs a 'transform'"),
        ({"start_anchor": "x", "fields": {"content": {"content": "yaml"}}}, "'yaml'"),
        ({"start_anchor": "x", "fields": {"content": {"join": ","}}}, "join"),
        ({"start_anchor": "x", "fields": {"content": {"transform": "a {content}"}}}, "mixes"),
    ],
)
def test_a_declaration_of_another_form_is_refused_as_transformers_refuses_it(declared, reason):
    with pytest.raises(ResponseTemplateError, match=reason):
        ResponseTemplate.load(declared)
    with pytest.raises(ValueError):
        chat_parsing.parse_response("", declared, prefix="")


FIELDS = {"content": {"open": "<a>", "close": "</a>"}, "reasoning": {"open": "<b>", "close": "</b>"}}


@pytest.mark.parametrize(
    ("fields", "answer", "reasoning"),
    [
        (FIELDS, ("<a>", "</a>"), ("<b>", "</b>")),
        ({"content": {}, "reasoning": {"open": "<b>", "close": "</b>"}}, ("", ""), ("<b>", "</b>")),
        ({"content": {}}, ("", ""), None),
    ],
    ids=["both are marked", "reasoning is marked", "nothing is marked"],
)
def test_what_stands_around_an_answer_and_around_reasoning_is_told(fields, answer, reasoning):
    template = ResponseTemplate.load({"start_anchor": "<turn>", "fields": fields})
    assert answer_marks(template) == answer
    assert reasoning_marks(template) == reasoning
