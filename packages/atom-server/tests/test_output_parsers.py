"""Parsers of generated text: whatever the pieces, the whole is the same."""

from __future__ import annotations

import pytest

from atom_server.output.hermes import HermesParser
from atom_server.output.parts import Assembled, assemble
from atom_server.output.plain_json import JsonParser
from atom_server.output.reasoning import ReasoningParser

NAMES = ("f", "g")
ARGUMENTS = '{"a": "}\\"{ <x>", "b": [1, {"c": null}]}'


def json_parser():
    return JsonParser(NAMES)


def thinking(is_open=False):
    return lambda: ReasoningParser("<think>", "</think>", HermesParser(), is_open=is_open)


CALL = f'{{"name": "f", "arguments": {ARGUMENTS}}}'
CASES = {
    "hermes": (HermesParser, f"Now <b>\n<tool_call>\n{CALL}\n</tool_call>", ("Now <b>\n", "", [("f", ARGUMENTS)])),
    "two hermes calls": (
        HermesParser,
        f'<tool_call>{CALL}</tool_call><tool_call>{{"arguments": {{"x": 1}}, "name": "g"}}</tool_call>',
        ("", "", [("f", ARGUMENTS), ("g", '{"x": 1}')]),
    ),
    "a hermes call without arguments": (HermesParser, '<tool_call>{"name": "g"}</tool_call>', ("", "", [("g", "{}")])),
    "text like a marker": (HermesParser, "1 <tool_cal", ("1 <tool_cal", "", [])),
    "llama": (json_parser, f'<|python_tag|>{CALL.replace("arguments", "parameters")}', ("", "", [("f", ARGUMENTS)])),
    "a list": (
        json_parser, f' [{CALL}, {{"name": "g", "parameters": {{}}}}]', ("", "", [("f", ARGUMENTS), ("g", "{}")]),
    ),
    "another function": (json_parser, '{"name": "h", "x": 1} so', ('{"name": "h", "x": 1} so', "", [])),
    "other json": (json_parser, '{"x": 1}', ('{"x": 1}', "", [])),
    "no json": (json_parser, "[note] {yes}", ("[note] {yes}", "", [])),
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


def test_arguments_stream_before_their_end():
    parts = HermesParser().feed('<tool_call>{"name": "f", "arguments": {"a": "lo')
    assert assemble(parts).calls == [("f", '{"a": "lo')]
