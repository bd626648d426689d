"""Values in what a response template declares: tags, and texts as a function's schema has them."""

from __future__ import annotations

import pytest

from atom_server.output.response_template.calls import CallReading, reading_of, typed_value
from atom_server.output.response_template.template import Field
from atom_server.output.response_template.values import parse_content

TAG = {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>"}
CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


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
        ("null", " null\n", None),
        ("null", "nothing", "nothing"),
        ("number", "1e400", "1e400"),
        ("number", "4", 4),
        ("integer", "4.0", 4),
        ("boolean", " 1 ", True),
        ("boolean", "0", False),
        ("string", "3", "3"),
    ],
)
def test_text_becomes_what_the_schema_says_where_it_says_that(kind, text, value):
    schema = {"type": "object", "properties": {"key": {"type": kind}}}
    for read_from in (None, text):
        assert typed_value(text, schema, "key", read_from) == value


def test_text_that_need_not_be_text_may_be_json():
    schema = {"type": "object", "properties": {"any": {}, "few": {"type": ["string", "integer"]}}}
    assert typed_value('{"a": [1]}', schema, "any", '{"a": [1]}') == {"a": [1]}
    assert typed_value('"3"', schema, "few", '"3"') == "3"
    assert typed_value("[3]", schema, "few", "[3]") == "[3]"
    assert typed_value("3", schema, "few", "3") == 3


def test_of_tags_of_one_name_the_last_counts_unless_they_are_merged():
    text = "<p=a>1</p> <p=b>2</p> <p=a>3</p> <p=a>4</p>"
    assert parse_content(text, "xml-inline", TAG) == {"a": "4", "b": "2"}
    assert parse_content(text, "xml-inline", {**TAG, "merge_duplicates": True}) == {"a": ["1", "3", "4"], "b": "2"}


@pytest.mark.parametrize(
    ("content", "args", "reading"),
    [
        ("xml-inline", TAG, CallReading("tags", "name", tag_end="</p>")),
        ("xml-inline", {**TAG, "merge_duplicates": True}, None),
        ("xml-inline", {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*)"}, None),
        ("kv-lines", TAG, None),
        ("json", {}, CallReading("json", "name")),
        ("json", {"allow_non_json": True}, None),
    ],
)
def test_calls_are_read_piece_by_piece_where_each_piece_tells(content, args, reading):
    field = Field("tool_calls", None, None, content, args, transform=CALL)
    assert reading_of(field) == reading
