"""The calls of a field: how they can be read while they come, and what they are once their text is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from atom_server.output.response_template.pattern_text import Group, pieces_of
from atom_server.output.response_template.template import Field
from atom_server.output.response_template.values import parse_content, placeholder, tags_in, transformed
from atom_server.output.schema_types import has_property, property_types

_WHOLE: tuple[str, ...] = ("content",)


@dataclass(frozen=True)
class CallReading:
    """How calls stand in a field's text.

    Attributes:
        style: "object" and "list" of objects with name and arguments; "json", "bare" (see `BareKeysStyle`) and "tags"
            are arguments of a function whose name the field's beginning has caught.
        name, arguments: keys of an object; `name` is else the group that catches it.
        quote: around the strings of "bare".
        tag_end: what every tag of "tags" ends with.
    """

    style: Literal["object", "list", "json", "bare", "tags"]
    name: str = "name"
    arguments: str = "arguments"
    quote: str = ""
    tag_end: str = ""


def reading_of(field: Field) -> CallReading | None:
    """None where only the whole text tells."""
    shape = field.transform.get("function") if isinstance(field.transform, Mapping) else None
    dialect = _dialect(field)
    if placeholder(shape) == _WHOLE:
        return CallReading("object") if dialect == "json" and not field.is_transformed_each else None
    if dialect is None or not isinstance(shape, Mapping):
        return None
    name, arguments = placeholder(shape.get("name")), placeholder(shape.get("arguments"))
    match name, arguments:
        case (key,), (other,) if field.is_transformed_each and dialect == "json":
            return CallReading("list", key, other)
        case ("content", key), ("content", other) if dialect == "json":
            return CallReading("object", key, other)
        case (group,), ("content",) if group != "content" and not field.is_transformed_each:
            quote = field.content_args["string_delims"][0][0] if dialect == "bare" else ""
            return CallReading(dialect, group, quote=quote, tag_end=_tag_end(field) if dialect == "tags" else "")
    return None


def _dialect(field: Field) -> Literal["json", "bare", "tags"] | None:
    args = field.content_args
    if field.content == "json" and not args:
        return "json"
    if field.content == "json" and set(args) == {"unquoted_keys", "string_delims"} and args["unquoted_keys"]:
        delimiters = args["string_delims"]
        return "bare" if len(delimiters) == 1 and len({*delimiters[0]}) == 1 else None
    is_tagged = field.content == "xml-inline" and not args.get("merge_duplicates")
    return "tags" if is_tagged and _tag_end(field) else None


def _tag_end(field: Field) -> str:
    """A tag that ends with a text of its own is a tag whatever comes after it; "" where it does not."""
    pieces = pieces_of(str(field.content_args.get("tag_pattern"))) or [""]
    names = [piece.name for piece in pieces if isinstance(piece, Group)]
    return pieces[-1] if names == ["key", "value"] and isinstance(pieces[-1], str) else ""


def calls_in(field: Field, text: str, captures: Mapping[str, str], schemas: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and JSON arguments of the calls that a field's whole text makes.

    Raises:
        ValueError: it does not parse.
        TimeoutError: it took too long.
    """
    value = parse_content(text, field.content, field.content_args)
    if field.is_transformed_each:
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            raise ValueError("it is no list of objects")
        value = [transformed(field.transform, {**captures, **entry}) for entry in value]
    elif field.transform is not None:
        value = transformed(field.transform, {**captures, "content": value})
    calls = value if isinstance(value, list) else [value]
    return [_call(field, text, call, schemas) for call in calls]


def _call(field: Field, text: str, call: Any, schemas: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("it has no name")
    name, arguments = function["name"], function.get("arguments")
    if isinstance(arguments, str):
        return name, arguments
    if not isinstance(arguments, Mapping):
        return name, "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    tags = tags_in(text, field.content_args) if field.content == "xml-inline" else []
    bare = {key: written for key, written, _ in tags}
    schema = schemas.get(name)
    typed = {key: typed_value(entry, schema, key, bare.get(key)) for key, entry in arguments.items()}
    return name, json.dumps(typed, ensure_ascii=False)


def typed_value(value: Any, schema: Any, key: str, text: str | None) -> Any:
    """A parameter's value as the function's schema has it: text becomes what it says, where that is no text.

    Args:
        text: what the value was read from, where that is known: the value of a parameter that can only be text.
    """
    types = property_types(schema, key)
    if types == {"string"} and text is not None and not isinstance(value, str):
        return text
    if text is not None and isinstance(value, str) and types != {"string"} and has_property(schema, key):
        return _written(value, types)
    if isinstance(value, list) and types and "array" not in types:
        return [_cast(entry, types) if isinstance(entry, str) else entry for entry in value]
    return _cast(value, types) if isinstance(value, str) else value


def _written(text: str, types: frozenset[str]) -> Any:
    """The value of bare text that may be more than text; it may be JSON, as enforced calls have it."""
    value = _cast(text, types)
    try:
        told = parse_content(text, "json", {}) if value is text else value
    except ValueError:
        return value
    return told if not types or isinstance(told, str) else value


def _cast(text: str, types: frozenset[str]) -> Any:
    for name in ("integer", "number", "boolean", "null", "object", "array"):
        if name in types:
            try:
                return _CASTS[name](text)
            except ValueError:
                continue
    return text


def _integer(text: str) -> int:
    number = float(text)
    if not number.is_integer():
        raise ValueError("it has a fraction")
    return int(text) if text.strip().lstrip("+-").isdigit() else int(number)


def _number(text: str) -> float | int:
    number = float(text)
    if number != number or abs(number) == float("inf"):
        raise ValueError("it is no number of JSON")
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    if (word := text.strip().lower()) not in ("true", "1", "false", "0"):
        raise ValueError("it is neither")
    return word in ("true", "1")


def _null(text: str) -> None:
    if text.strip() not in ("null", "None"):
        raise ValueError("it is something")


def _instance(kind: type) -> Any:
    def cast(text: str) -> Any:
        value = parse_content(text, "json", {})
        if not isinstance(value, kind):
            raise ValueError("it is of another kind")
        return value

    return cast


_CASTS: dict[str, Any] = {
    "integer": _integer, "number": _number, "boolean": _boolean, "null": _null,
    "object": _instance(dict), "array": _instance(list),
}  # fmt: skip
