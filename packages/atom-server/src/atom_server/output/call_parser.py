"""`CallParser`: the one reader of all notations with marks. It follows the text mark by mark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from atom_server.output.call_object import CallObject, JsonValue
from atom_server.output.notation import CallNotation
from atom_server.output.parts import Part, as_parts, cut
from atom_server.output.tagged_arguments import TaggedArguments

_NAME = re.compile(r"\s*([\w.\-]*)")


class CallParser:
    """Text outside the marks is content. A call that does not parse is left out from where it breaks.

    Args:
        notation: with marks, see `CallNotation.trigger`.
        schemas: parameters of each function, which give tagged values their types.
        strays: special tokens that are no content, wherever they turn up.
    """

    is_reasoning = False

    def __init__(
        self, notation: CallNotation, schemas: Mapping[str, Any] | None = None, strays: Collection[str] = ()
    ) -> None:
        self._notation = notation
        self._schemas = schemas or {}
        self._begin, self._end = notation.begin.strip(), notation.end.strip()
        self._call_mark, self._call_end = notation.call.strip(), notation.call_end.strip("\n`")
        self._content_marks = tuple({notation.trigger: None, **dict.fromkeys(strays)})
        self._rest = ""
        self._state = "content"
        self._is_after_call = False
        self._object = CallObject()
        self._value: JsonValue | None = None
        self._tagged: TaggedArguments | None = None

    def feed(self, text: str) -> list[Part]:
        """What is certain now."""
        self._rest += text
        parts: list[Part] = []
        while self._rest:
            state, length = self._state, len(self._rest)
            parts += self._step()
            if (state, length) == (self._state, len(self._rest)):
                break
        return parts

    def finish(self) -> list[Part]:
        """What was held back."""
        rest, self._rest = self._rest, ""
        return self._content(rest) if self._state == "content" else []

    def _step(self) -> list[Part]:
        match self._state:
            case "content":
                return self._in_content()
            case "section":
                self._find({self._call_mark or "{": self._first_state, self._end: "content"}, keep="{")
            case "name":
                return self._in_name()
            case "object-begin":
                self._find({"{": "object", self._call_end: self._next_state}, keep="{")
                self._object = CallObject()
            case "object":
                return self._in_object()
            case "json-begin":
                return self._begin_json()
            case "json":
                return self._in_json()
            case "tagged":
                return self._in_tagged()
            case _:
                self._find({self._call_end: self._next_state})
        return []

    @property
    def _first_state(self) -> str:
        return "object-begin" if self._notation.style == "object" else "name"

    @property
    def _next_state(self) -> str:
        return "section" if self._begin else "content"

    def _find(self, states: dict[str, str], keep: str = "") -> str:
        """Drop text up to the first of some marks, and go where it leads; the mark `keep` stays in the text."""
        marks = [mark for mark in states if mark]
        if not marks:
            self._state = next(iter(states.values()))
            return ""
        _, self._rest, mark = cut(self._rest, *marks)
        if mark:
            self._state = states[mark]
            self._rest = keep + self._rest if mark == keep else self._rest
        return mark

    def _in_content(self) -> list[Part]:
        before, self._rest, mark = cut(self._rest, *self._content_marks)
        parts = self._content(before)
        if mark == self._notation.trigger:
            self._state = "section" if self._begin else self._first_state
        return parts

    def _content(self, text: str) -> list[Part]:
        """White space between and after calls is layout."""
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        return as_parts("content", [text])

    def _in_name(self) -> list[Part]:
        found = _NAME.match(self._rest)
        name = found[1] if found else ""
        if found is None or found.end() == len(self._rest):
            return []  # it may go on
        self._rest = self._rest[found.end() :]
        self._is_after_call = True
        if not name:
            self._state = "call-end"
            return []
        style = self._notation.style
        self._state = "json-begin"
        if not isinstance(style, str):
            self._state, self._tagged = "tagged", TaggedArguments(style, self._call_end, self._schemas.get(name))
        return [Part("name", name)]

    def _begin_json(self) -> list[Part]:
        """Whatever stands between a name and its arguments, those begin with a brace."""
        ends = self._call_end or self._notation.trigger
        mark = self._find({"{": "json", ends: "call-end"}, keep="{")
        if mark == "{":
            self._value = None
        elif mark:
            self._rest = ends + self._rest
            return [Part("arguments", "{}")]
        return []

    def _in_json(self) -> list[Part]:
        for position, character in enumerate(self._rest):
            if self._value is None:
                self._value = JsonValue(character)
            elif self._value.ends_with(character):
                text, self._rest = self._rest[: position + 1], self._rest[position + 1 :]
                self._state = "call-end"
                return [Part("arguments", text)]
        text, self._rest = self._rest, ""
        return [Part("arguments", text)]

    def _in_object(self) -> list[Part]:
        parts: list[Part] = []
        for position, character in enumerate(self._rest):
            try:
                parts += self._object.feed(character)
            except ValueError:
                self._object.done = True
            if self._object.done:
                self._is_after_call = True
                self._state, self._rest = "call-end", self._rest[position:].removeprefix("}")
                return parts
        self._rest = ""
        return parts

    def _in_tagged(self) -> list[Part]:
        if self._tagged is None:
            return []
        text = self._tagged.feed(self._rest)
        self._rest = ""
        if self._tagged.done:
            self._rest, self._state = self._tagged.rest, self._next_state
        return [Part("arguments", text)] if text else []
