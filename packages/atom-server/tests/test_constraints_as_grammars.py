"""Constraints of a request as parts of the grammar of a whole reply."""

from __future__ import annotations

import pytest

from atom_core import StructuredOutputParams
from atom_server.output.enforcement import constraint_format

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
