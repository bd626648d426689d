"""Constraints of a request as parts of the grammar of a whole reply."""

from __future__ import annotations

import pytest

from atom_core import StructuredOutputParams
from atom_server.output.enforcement import constraint_format, text_or_calls
from atom_server.output.notation import NOTATIONS
from atom_server.schemas.fields.tools import Tool

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CASES = {
    "structural tag": (
        {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {"type": "any_text"},
    ),
    "schema": ({"json": SCHEMA}, {"type": "json_schema", "json_schema": SCHEMA}),
    "schema as text": ({"json": '{"type": "array"}'}, {"type": "json_schema", "json_schema": {"type": "array"}}),
    "any object": ({"json_object": True}, {"type": "json_schema", "json_schema": {"type": "object"}}),
    "pattern": ({"regex": "[ab]"}, {"type": "regex", "pattern": "[ab]"}),
    "one choice": ({"choice": ["a"]}, {"type": "const_string", "value": "a"}),
    "grammar": ({"grammar": 'root ::= "a"'}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_constraint_becomes_a_part_of_the_grammar(case):
    given, expected = CASES[case]
    assert constraint_format(StructuredOutputParams(**given)) == expected


@pytest.mark.parametrize("several", [True, False])
def test_a_reply_may_be_text_alone_and_have_as_many_calls_as_are_allowed(several):
    tools = [Tool.model_validate({"type": "function", "function": {"name": "f"}})]
    # A section of calls comes once, and holds them all.
    for notation, stops in ((NOTATIONS["hermes"], not several), (NOTATIONS["kimi"], True)):
        form = text_or_calls(notation, tools, several=several)
        assert (form["at_least_one"], form["stop_after_first"]) == (False, stops)
