"""From a request's constraint to a grammar in llguidance's notation, within limits of size and depth."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from atom_core.messages import StructuredOutputParams

MAX_BYTES = 65_536
MAX_REGEX_LENGTH = 8_192
MAX_DEPTH = 64
MAX_CHOICES = 1_024
MAX_TAGS = 128

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

# One layout, that of Python's json.dumps: free white space would let a model emit blanks without end.
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarError(ValueError):
    """A constraint that cannot be followed: malformed, too large, or of a kind that is not supported."""


def kind_of(params: StructuredOutputParams) -> str:
    """The one kind of constraint that `params` names.

    Raises:
        GrammarError: none, or more than one.
    """
    given = [name for name in KINDS if getattr(params, name) not in (None, False)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise GrammarError(f"exactly one of {', '.join(KINDS)} must be given; got {found}")
    return given[0]


def check_limits(params: StructuredOutputParams) -> None:
    """Raise GrammarError unless `params` names one constraint of the right type and a sane size."""
    if not isinstance(params, StructuredOutputParams):
        raise GrammarError(f"must be StructuredOutputParams, not {type(params).__name__}")
    kind = kind_of(params)
    value = getattr(params, kind)
    if kind in ("regex", "grammar") and (not isinstance(value, str) or not value):
        raise GrammarError(f"{kind} must be a text that is not empty")
    if kind == "regex" and len(value) > MAX_REGEX_LENGTH:
        raise GrammarError(f"regex has {len(value)} characters; at most {MAX_REGEX_LENGTH} are allowed")
    if kind == "json_object" and value is not True:
        raise GrammarError("json_object must be true")
    if kind == "choice" and not (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= MAX_CHOICES
        and all(isinstance(item, str) and item for item in value)
    ):
        raise GrammarError(f"choice must be a list of 1 to {MAX_CHOICES} texts that are not empty")
    if kind in ("json", "structural_tag"):
        value = _as_json(kind, value)
        _check_depth(kind, value)
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise GrammarError(f"{kind} cannot be written as JSON: {error}") from None
    if size > MAX_BYTES:
        raise GrammarError(f"{kind} has {size} bytes; at most {MAX_BYTES} are allowed")


def grammar_of(params: StructuredOutputParams) -> str:
    """The grammar of a constraint that passed `check_limits`.

    Raises:
        GrammarError: it cannot be put into a grammar. That the grammar itself is sound shows when it is compiled.
    """
    import llguidance

    kind = kind_of(params)
    value = getattr(params, kind)
    try:
        match kind:
            case "json":
                return llguidance.LLMatcher.grammar_from_json_schema(
                    _schema_text(_as_json(kind, value)), overrides=JSON_LAYOUT
                )
            case "json_object":
                return llguidance.LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=JSON_LAYOUT)
            case "regex":
                return llguidance.LLMatcher.grammar_from_regex(value)
            case "choice":
                return llguidance.grammar_from("choice", json.dumps(list(value)))
            case "grammar":
                return llguidance.grammar_from("grammar", value)
            case _:
                return _tags_grammar(_as_json(kind, value))
    except GrammarError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise GrammarError(f"{kind}: {error}") from None


def _schema_text(schema: Any) -> str:
    """A schema as JSON. Its own layout options are dropped: the layout is ours."""
    if isinstance(schema, dict):
        schema = {name: value for name, value in schema.items() if name != "x-guidance"}
    return json.dumps(schema)


def _as_json(kind: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise GrammarError(f"{kind} is a text that is not JSON: {error}") from None
    if not isinstance(value, dict | bool) or (kind == "structural_tag" and not isinstance(value, dict)):
        raise GrammarError(f"{kind} must be a JSON object, or the text of one; got {type(value).__name__}")
    return value


def _check_depth(kind: str, value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise GrammarError(f"{kind} is nested deeper than {MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _tags_grammar(tag: dict[str, Any]) -> str:
    """``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``: free text with tags that hold JSON."""
    from llguidance import StructTag

    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise GrammarError("structural_tag must have the lists 'structures' and 'triggers', neither of them empty")
    if len(structures) > MAX_TAGS or len(triggers) > MAX_TAGS:
        raise GrammarError(f"structural_tag may have at most {MAX_TAGS} structures and triggers")
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError("structural_tag: 'triggers' must be texts that are not empty")
    tags = []
    for item in structures:
        item = item if isinstance(item, dict) else {}
        begin, schema, end = item.get("begin"), item.get("schema", {}), item.get("end", "")
        if not isinstance(begin, str) or not isinstance(schema, dict) or not isinstance(end, str):
            raise GrammarError("structural_tag: a structure has the texts 'begin' and 'end', and 'schema', an object")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise GrammarError(f"structural_tag: {begin[:60]!r} begins with none of the triggers")
        tags.append(StructTag(trigger=trigger, begin=begin, grammar={**schema, "x-guidance": JSON_LAYOUT}, end=end))
    return StructTag.to_grammar(tags, assume_special=False)
