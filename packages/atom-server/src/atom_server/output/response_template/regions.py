"""What is open while a response template is followed: text, values, or calls that are told as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from atom_server.output.bare_keys import BareKeysBody
from atom_server.output.call_object import ARGUMENTS_KEYS, CallObject, JsonBody, ListBody
from atom_server.output.parts import CallBody, Part
from atom_server.output.response_template.calls import CallReading, calls_in, reading_of, typed_value
from atom_server.output.response_template.template import Field
from atom_server.output.response_template.values import inner_value, parse_content, tags_in, transformed


class Region:
    """Takes the text of one field. This one is for text that clients have no place for, as that outside all fields."""

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        return []

    def close(self) -> list[Part]:
        """Return the parts that were held back."""
        return []


class TextRegion(Region):
    """Content or reasoning, as it comes.

    Args:
        lead: what stands between it and earlier text of its kind.
    """

    def __init__(self, field: Field, lead: str) -> None:
        self._kind: Any = field.kind
        self._strips = field.content != "text" or field.content_args.get("strip", True)
        self._lead, self._space = lead, ""
        self._has_begun = not self._strips

    def feed(self, text: str) -> list[Part]:
        """White space at either end belongs to the layout."""
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        if not text:
            return []
        body = text.rstrip() if self._strips else text
        if not body:
            self._space += text
            return []
        told, self._lead = self._lead + self._space + body, ""
        self._space = text[len(body) :]
        return [Part(self._kind, told)]

    def forget(self) -> None:
        """What came so far is not part of the answer."""
        self._lead = self._space = ""


class WholeText(Region):
    """A field of which only the whole text tells, which `read` makes parts of."""

    def __init__(self, read: Callable[[str], list[Part]]) -> None:
        self._read = read
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        self._text += text
        return []

    def close(self) -> list[Part]:
        return self._read(self._text)


class TaggedCall(Region):
    """Arguments between tags: each is told once it is whole."""

    def __init__(self, field: Field, reading: CallReading, name: str, schema: Any) -> None:
        self._args, self._schema, self._tag_end = field.content_args, schema, reading.tag_end
        self._text, self._num_seen = "", 0
        self._news = [Part("name", name), Part("arguments", "{")]
        self._comma = ""

    def feed(self, text: str) -> list[Part]:
        self._text += text
        news, self._news = self._news, []
        if self._text.find(self._tag_end, self._num_seen) >= 0:
            news += self._tags()
        self._num_seen = max(0, len(self._text) - len(self._tag_end) + 1)
        return news

    def close(self) -> list[Part]:
        return [*self.feed(""), Part("arguments", "}")]

    def _tags(self) -> list[Part]:
        parts: list[Part] = []
        end = 0
        try:
            for key, text, place in tags_in(self._text, self._args):
                end = place
                value = typed_value(inner_value(text, self._args), self._schema, key, text)
                name, told = json.dumps(key, ensure_ascii=False), json.dumps(value, ensure_ascii=False)
                parts.append(Part("arguments", f"{self._comma}{name}: {told}"))
                self._comma = ", "
        except (ValueError, TimeoutError):
            end = len(self._text)  # it has no value of the declared kind
        self._text = self._text[end:]
        return parts


def body_of(reading: CallReading) -> CallBody | None:
    """The reader of calls; None where they are not read character by character."""
    keys = (reading.name, ARGUMENTS_KEYS if reading.arguments == "arguments" else (reading.arguments,))
    match reading.style:
        case "object":
            return CallObject(*keys)
        case "list":
            return ListBody(*keys)
        case "json":
            return JsonBody()
        case "bare":
            return BareKeysBody(reading.quote)
    return None


def open_region(field: Field, lead: str, captures: Mapping[str, str], schemas: Mapping[str, Any]) -> Region:
    """What takes a field's text; calls that begin like JSON get a reader of their own then, see `body_of`."""
    if field.kind is None:
        return Region()
    if field.kind != "calls":
        is_text = field.transform is None and field.content in ("text", "int", "float", "bool")
        return TextRegion(field, lead) if is_text else WholeText(partial(_value, field, lead, captures))
    reading = reading_of(field)
    if reading is not None and reading.style == "tags" and (name := captures.get(reading.name)):
        return TaggedCall(field, reading, name.strip(), schemas.get(name.strip()))
    return WholeText(partial(_calls, field, captures, schemas))


def _value(field: Field, lead: str, captures: Mapping[str, str], text: str) -> list[Part]:
    """Content or reasoning; text that has no value of the declared kind stays text."""
    try:
        value = parse_content(text, field.content, field.content_args)
        if field.transform is not None:
            value = transformed(field.transform, {**captures, "content": value})
    except (ValueError, TimeoutError):
        value = text.strip()
    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kind: Any = field.kind
    return [Part(kind, lead + told)] if told else []


def _calls(field: Field, captures: Mapping[str, str], schemas: Mapping[str, Any], text: str) -> list[Part]:
    """Calls; one that does not parse is left out."""
    try:
        calls = calls_in(field, text, captures, schemas)
    except (ValueError, TimeoutError):
        return []
    return [part for name, arguments in calls for part in (Part("name", name), Part("arguments", arguments))]
