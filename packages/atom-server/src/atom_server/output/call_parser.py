"""`CallParser`: the one reader of all notations with marks. It follows the text mark by mark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from atom_server.output.bare_keys import BareKeysBody
from atom_server.output.call_object import CallObject, JsonBody
from atom_server.output.notation import BareKeysStyle, CallNotation, TaggedStyle
from atom_server.output.parts import CallBody, Part, SteppingParser, as_parts, cut
from atom_server.output.tagged_arguments import TaggedArguments

_NAME = re.compile(r"\s*([\w.\-]*)")


class CallParser(SteppingParser):
    """Text outside the marks is content. A call that does not parse is left out from where it breaks.

    Args:
        notation: one that has marks, see `CallNotation.trigger`.
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
        self._is_after_call = False
        self._body: CallBody = CallObject(notation.name_key)
        super().__init__("content")

    def finish(self) -> list[Part]:
        """Return the parts that were held back."""
        rest, self.rest = self.rest, ""
        return self._content(rest) if self._state == "content" else []

    def _step(self) -> list[Part]:
        match self._state:
            case "content":
                return self._in_content()
            case "section":
                self._find({self._call_mark or "{": self._first_state, self._end: "content"}, keep="{")
            case "name":
                return self._in_name()
            case "begin":
                return self._begin_body()
            case "body":
                return self._in_body()
            case _:
                self._find({self._call_end: self._next_state})
        return []

    @property
    def _is_object(self) -> bool:
        return self._notation.style == "object"

    @property
    def _first_state(self) -> str:
        return "begin" if self._is_object else "name"

    @property
    def _next_state(self) -> str:
        return "section" if self._begin else "content"

    def _find(self, states: dict[str, str], keep: str = "") -> str:
        """Drop text up to the first of some marks, and go where it leads; the mark `keep` stays in the text."""
        marks = [mark for mark in states if mark]
        if not marks:
            self._state = next(iter(states.values()))
            return ""
        _, self.rest, mark = cut(self.rest, *marks)
        if mark:
            self._state = states[mark]
            self.rest = keep + self.rest if mark == keep else self.rest
        return mark

    def _in_content(self) -> list[Part]:
        before, self.rest, mark = cut(self.rest, *self._content_marks)
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
        found = _NAME.match(self.rest)
        name = found[1] if found else ""
        if found is None or found.end() == len(self.rest):
            return []  # it may go on
        self.rest = self.rest[found.end() :]
        self._is_after_call = True
        if not name:
            self._state = "call-end"
            return []
        self._state = "begin"
        if isinstance(self._notation.style, TaggedStyle):
            self._state = "body"
            self._body = TaggedArguments(self._notation.style, self._call_end, self._schemas.get(name))
        return [Part("name", name)]

    def _begin_body(self) -> list[Part]:
        """Whatever stands before them, an object or JSON arguments begin with a brace."""
        ends = self._call_end if self._is_object else self._call_end or self._notation.trigger
        mark = self._find({"{": "body", ends: "call-end"}, keep="{")
        if mark == "{":
            style, name_key = self._notation.style, self._notation.name_key
            json_body = BareKeysBody(style.quote) if isinstance(style, BareKeysStyle) else JsonBody()
            self._body = CallObject(name_key) if self._is_object else json_body
        elif mark:
            self.rest = ends + self.rest
            return [] if self._is_object else [Part("arguments", "{}")]
        return []

    def _in_body(self) -> list[Part]:
        text, self.rest = self.rest, ""
        parts = self._body.feed(text)
        if self._body.done:
            self._is_after_call = True
            self.rest, self._state = self._body.rest, "call-end"
        return parts
