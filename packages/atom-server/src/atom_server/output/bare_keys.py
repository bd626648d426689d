"""`BareKeysBody`: the objects that Gemma writes, with bare keys and strings between marks, become JSON."""

from __future__ import annotations

import json

from atom_server.output.call_object import JsonValue
from atom_server.output.parts import Part, SteppingParser, as_parts, cut
from atom_server.output.tagged_arguments import json_value

_CLOSES = {"{": "}", "[": "]"}


class BareKeysBody(SteppingParser):
    """Reads ``{city:<escape>Paris<escape>,days:3}``, and JSON, which is much the same.

    Args:
        quote: what begins and ends a string.
    """

    def __init__(self, quote: str) -> None:
        super().__init__("value")
        self._quote = quote
        self._open: list[str] = []
        self._comma = ""
        self._string = JsonValue('"')

    def _step(self) -> list[Part]:
        return as_parts("arguments", [self._read()])

    def _read(self) -> str:
        if self._state == "text":
            return self._in_text()
        if self._state == "string":
            return self._in_string()
        if self._state == "scalar":
            return self._in_scalar()
        self.rest = self.rest.lstrip()
        if not self.rest:
            return ""
        if self.rest[0] in "}]":
            return self._close()
        if self._state == "after":
            return self._after_value()
        return self._at_key() if self._state == "key" else self._at_value()

    def _after_value(self) -> str:
        if self.rest[0] != ",":
            self.done = True  # broken
            return ""
        self.rest, self._comma = self.rest[1:], ", "
        self._state = "key" if self._open[-1] == "{" else "value"
        return ""

    def _at_key(self) -> str:
        if self._quote.startswith(self.rest):
            return ""
        if self.rest.startswith(self._quote):
            key, mark, after = self.rest[len(self._quote) :].partition(self._quote)
        elif self.rest[0] == '"':
            key, mark, after = self.rest[1:].partition('"')
        else:
            key, mark, after = "", "both", self.rest
        head, colon, rest = after.partition(":")
        if not mark or not colon:
            return ""
        self.rest, self._state = rest, "value"
        return self._begun(f"{json.dumps(key or head.strip(), ensure_ascii=False)}: ")

    def _at_value(self) -> str:
        first = self.rest[0]
        if self.rest.startswith(self._quote):
            self.rest, self._state = self.rest[len(self._quote) :], "text"
            return self._begun('"')
        if self._quote.startswith(self.rest):
            return ""
        if first in _CLOSES:
            self._open.append(first)
            self.rest, self._state = self.rest[1:], "key" if first == "{" else "value"
            return self._begun(first)
        if first == '"':
            self._state, self._string, self.rest = "string", JsonValue(first), self.rest[1:]
            return self._begun(first)
        self._state = "scalar"
        return self._begun("")

    def _begun(self, text: str) -> str:
        comma, self._comma = self._comma, ""
        return comma + text

    def _in_text(self) -> str:
        before, self.rest, mark = cut(self.rest, self._quote)
        self._state = "after" if mark else "text"
        return json.dumps(before, ensure_ascii=False)[1:-1] + ('"' if mark else "")

    def _in_string(self) -> str:
        for position, character in enumerate(self.rest):
            if self._string.ends_with(character):
                text, self.rest = self.rest[: position + 1], self.rest[position + 1 :]
                self._state = "after"
                return text
        text, self.rest = self.rest, ""
        return text

    def _in_scalar(self) -> str:
        ends = [end for end in map(self.rest.find, ",}]") if end >= 0]
        if not ends:
            return ""
        text, self.rest, self._state = self.rest[: min(ends)], self.rest[min(ends) :], "after"
        return json_value(text.strip(), frozenset())

    def _close(self) -> str:
        self._comma = ""
        closing, self.rest, self._state = _CLOSES[self._open.pop()], self.rest[1:], "after"
        self.done = not self._open
        return closing
