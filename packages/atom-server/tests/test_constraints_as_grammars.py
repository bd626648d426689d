"""Constraints of a request as parts of the grammar of a whole reply, and values as a function's schema has them."""

from __future__ import annotations

import pytest

from atom_core import StructuredOutputParams
from atom_server.output.enforcement import constraint_format
from atom_server.output.response_template.calls import typed_value

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


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("object", '{"b": 1}', {"b": 1}),
        ("object", "[1]", "[1]"),
        ("array", "[1]", [1]),
        ("array", '{"b": 1}', '{"b": 1}'),
        ("integer", "3", 3),
        ("integer", "3.5", "3.5"),
        ("number", "3.5", 3.5),
        ("boolean", "True", True),
        ("boolean", "yes", "yes"),
        ("null", "None", None),
        ("string", "3", "3"),
    ],
)
def test_text_becomes_what_the_schema_says_where_it_says_that(kind, text, value):
    schema = {"type": "object", "properties": {"key": {"type": kind}}}
    for read_from in (None, text):
        assert typed_value(text, schema, "key", read_from) == value
