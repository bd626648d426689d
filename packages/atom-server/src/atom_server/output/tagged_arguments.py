"""`TaggedArguments`: values between tags become the JSON object that they stand for, as they come."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from atom_server.output.notation import TaggedStyle
from atom_server.output.parts import Part, SteppingParser, as_parts, cut
from atom_server.output.schema_types import property_types

_WORDS = {"True": "true", "False": "false", "None": "null"}


class TaggedArguments(SteppingParser):
    """Reads the parameters of one call up to the call's end.

    Strings stream; other values come whole, at their end.

    Attributes:
        done: the call's end was found.
        rest: the call's end and the text after it, or text that cannot be told yet.
    """

    def __init__(self, style: TaggedStyle, call_end: str, schema: Any) -> None:
        super().__init__("open")
        self._key_mark, self._after_key = style.key, style.after_key.strip()
        self._value_marks = tuple(mark for mark in (style.text_value, style.value) if mark)
        self._text_mark = style.text_value
        self._at_start = False
        # A template that breaks the line before a value does so after it too; neither break is part of the value.
        end = style.after_value.strip()
        self._value_ends = ("\n" + end, end) if style.after_value.startswith("\n") else (end,)
        self._is_padded = len(self._value_ends) > 1
        self._call_end = call_end.strip()
        self._schema = schema
        self._num_values = 0
        self._types: Set[str] = frozenset()
        self._is_text = False
        self._value = ""

    def _step(self) -> list[Part]:
        if self._state == "open":
            self._state = "between"
            return [Part("arguments", "{")]
        before, self.rest, mark = cut(self.rest, *self._marks())
        return as_parts("arguments", [self._take(before, mark)])

    def _marks(self) -> tuple[str, ...]:
        match self._state:
            case "between":
                return (self._key_mark, self._call_end)
            case "key":
                return (self._after_key,)
            case "value-mark":
                return self._value_marks
        return self._value_ends

    def _take(self, before: str, mark: str) -> str:
        if self._state == "value":
            return self._in_value(before, bool(mark))
        if self._state == "key":
            self._value += before
        if not mark:
            return ""
        if mark == self._call_end and self._state == "between":
            self.done, self.rest = True, mark + self.rest
            return "}"
        if self._state == "key":
            return self._begin_value(self._value.strip())
        if self._state == "value-mark":
            return self._at_value(mark)
        self._state = "key"
        return ""

    def _begin_value(self, key: str) -> str:
        comma = ", " if self._num_values else ""
        self._num_values += 1
        self._types = property_types(self._schema, key)
        self._value = ""
        self._state = "value-mark"
        name = f"{comma}{json.dumps(key, ensure_ascii=False)}: "
        return name if self._value_marks else name + self._at_value("")

    def _at_value(self, mark: str) -> str:
        """What tells strings apart is the mark before them where there are two, else the schema."""
        self._state, self._at_start = "value", self._is_padded
        self._is_text = mark == self._text_mark if self._text_mark else self._types == {"string"}
        return '"' if self._is_text else ""

    def _in_value(self, text: str, is_end: bool) -> str:
        if self._at_start and text:
            text, self._at_start = text.removeprefix("\n"), False
        if is_end:
            self._state = "between"
        if self._is_text:
            return json.dumps(text, ensure_ascii=False)[1:-1] + ('"' if is_end else "")
        self._value += text
        if not is_end:
            return ""
        value, self._value = self._value, ""
        return json_value(value, self._types)


def json_value(text: str, types: Set[str]) -> str:
    """The JSON text of a bare value whose schema allows `types`; a value that is no JSON is a string."""
    plain = text.strip()
    word = _WORDS.get(plain, plain)
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if types and _type_of(value) not in types and "string" in types:
        return json.dumps(text, ensure_ascii=False)
    return word


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
