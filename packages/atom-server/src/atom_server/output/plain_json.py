"""Calls as bare JSON, one object or a list: Llama 3 (after an optional ``<|python_tag|>``) and enforced calls."""

from __future__ import annotations

from collections.abc import Container

from atom_server.output.call_object import CallObject
from atom_server.output.parts import Part, as_parts

PYTHON_TAG = "<|python_tag|>"


class JsonParser:
    """Text that begins like a call of one of `names` is calls to its end; other text is content."""

    is_reasoning = False

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._state = "start"
        self._held = ""
        self._parts: list[Part] = []
        self._call = CallObject()

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        if self._state == "content":
            return as_parts("content", [text])
        parts: list[Part] = []
        for position, character in enumerate(text):
            parts += self._start(character) if self._state == "start" else self._in_calls(character)
            if self._state == "content":
                return parts + as_parts("content", [text[position + 1 :]])
        return parts

    def finish(self) -> list[Part]:
        """Return the parts that were held back."""
        held, self._held = self._held, ""
        return as_parts("content", [held]) if self._state == "start" else []

    def _start(self, character: str) -> list[Part]:
        self._held += character
        json_text = self._held.lstrip()
        if PYTHON_TAG.startswith(json_text):
            return []
        json_text = json_text.removeprefix(PYTHON_TAG)
        try:
            if json_text in ("", "[") or (not self._key_begun() and (character.isspace() or character == "[")):
                return []
            if character == ">" and self._held.endswith(PYTHON_TAG):
                return []
            self._parts += self._call.take(character)
        except ValueError:
            return self._as_content()
        if self._parts and self._parts[0].kind == "name":
            if self._parts[0].text not in self._names:
                return self._as_content()
            parts, self._parts, self._held, self._state = self._parts, [], "", "calls"
            return parts
        return []

    def _key_begun(self) -> bool:
        return "{" in self._held

    def _as_content(self) -> list[Part]:
        held, self._held, self._state = self._held, "", "content"
        return as_parts("content", [held])

    def _in_calls(self, character: str) -> list[Part]:
        if self._call.done:
            self._call = CallObject()
        try:
            return self._call.take(character)
        except ValueError:  # what stands between calls
            return []
