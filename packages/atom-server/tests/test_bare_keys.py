"""Objects with bare keys, as Gemma writes them: what their grammar allows is what their reader reads."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from atom_server.output.bare_keys import BareKeysBody
from atom_server.output.bare_keys_grammar import bare_keys_arguments
from atom_server.output.notation import BareKeysStyle

STYLE = BareKeysStyle('<|"|>')


def schema(required=(), **properties) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False,
    }  # fmt: skip


def texts(form: Any) -> set[str]:
    """Every text that a small grammar allows, with JSON values and free text stood for by one of each."""
    match form["type"]:
        case "const_string":
            return {form["value"]}
        case "sequence":
            found = {""}
            for element in form["elements"]:
                found = {head + tail for head in found for tail in texts(element)}
            return found
        case "or":
            return set().union(*map(texts, form["elements"]))
        case "optional":
            return {""} | texts(form["content"])
        case "any_text":
            return {"free text"}
        case "regex":
            return {"xy"}
        case "json_schema":
            return {{"integer": "-7", "boolean": "true"}[form["json_schema"]["type"]]}
    raise AssertionError(form["type"])


def read(text: str) -> Any:
    body = BareKeysBody(STYLE.quote)
    parts = body.feed(text + "<end>")
    assert (body.done, body.rest) == (True, "<end>")
    return json.loads("".join(part.text for part in parts))


ABC = {"b": {"type": "string"}, "A": {"type": "integer"}, "c": {"enum": ["x", "y"]}}


@pytest.mark.parametrize("required", [(), ("b",), ("A", "c"), ("A", "b", "c")])
def test_every_choice_of_optional_keys_is_read_as_a_valid_call(required):
    wanted = schema(required, **ABC)
    form = bare_keys_arguments(STYLE, wanted)
    calls = [read(text) for text in texts(form)]
    for call in calls:
        jsonschema.validate(call, wanted)
    # Each key that is not required is there or not, and "c" has two values.
    assert len(calls) == len({json.dumps(call) for call in calls})
    chosen = {frozenset(call) for call in calls}
    assert len(chosen) == 2 ** (3 - len(required))
    assert {tuple(call) for call in calls if len(call) == 3} == {("A", "b", "c")}


def test_a_string_of_some_length_cannot_begin_its_own_end():
    assert texts(bare_keys_arguments(STYLE, schema(["a"], a={"type": "string", "maxLength": 2}))) == {
        '{a:<|"|>xy<|"|>}'
    }


@pytest.mark.parametrize(
    "wanted",
    [
        schema(a={"type": "string", "pattern": "^x$"}),
        schema(a={"type": "object"}),
        schema(a={"type": ["string", "null"]}),
        {**schema(a={"type": "integer"}), "minProperties": 1},
        schema(**{"a:b": {"type": "integer"}}),
        schema(**{f"a{number}": {"type": "integer"} for number in range(13)}),
    ],
)
def test_what_it_cannot_hold_is_left_to_a_grammar_of_json(wanted):
    assert bare_keys_arguments(STYLE, wanted) is None


def test_keys_may_be_quoted_in_either_way():
    assert read('{<|"|>a:b<|"|>:1, "c" :[ ],d:{e:null,}}') == {"a:b": 1, "c": [], "d": {"e": None}}


def test_a_broken_object_ends_at_once():
    body = BareKeysBody(STYLE.quote)
    body.feed('{a:"x" y')
    assert body.done
