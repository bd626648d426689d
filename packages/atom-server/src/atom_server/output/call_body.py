"""Readers of what stands between a call's mark and its end, one for each way of writing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atom_server.output.call_object import ARGUMENTS_KEYS, CallObject, JsonValue
from atom_server.output.parts import Part


class CallBody(Protocol):
    """Reads from the first brace.

    Attributes:
        done: it has come to its end, or broken off.
        rest: the text after it.
    """

    done: bool
    rest: str

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        ...


class ObjectBody:
    """``{"name": ..., "arguments": {...}}``."""

    def __init__(self, name_key: str, arguments_keys: Sequence[str] = ARGUMENTS_KEYS) -> None:
        self.done = False
        self.rest = ""
        self._object = CallObject(name_key, arguments_keys)

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        parts: list[Part] = []
        for position, character in enumerate(text):
            try:
                parts += self._object.feed(character)
                self.done = self._object.done
            except ValueError:
                self.done = True
            if self.done:
                self.rest = text[position:].removeprefix("}")
                break
        return parts


class ListBody:
    """``[{...}, {...}]``, as many calls as it has objects."""

    def __init__(self, name_key: str, arguments_keys: Sequence[str]) -> None:
        self.done = False
        self.rest = ""
        self._keys = (name_key, arguments_keys)
        self._object: ObjectBody | None = None

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        parts: list[Part] = []
        while text and not self.done:
            if self._object is None:
                text = self._between(text)
                continue
            parts += self._object.feed(text)
            text = self._object.rest
            self._object = None if self._object.done else self._object
        self.rest = text
        return parts

    def _between(self, text: str) -> str:
        character = text[0]
        if character == "{":
            self._object = ObjectBody(*self._keys)
            return text
        self.done = not (character.isspace() or character in "[,")
        return text.removeprefix("]") if self.done else text[1:]


class JsonBody:
    """Arguments alone, as JSON."""

    def __init__(self) -> None:
        self.done = False
        self.rest = ""
        self._value: JsonValue | None = None

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        for position, character in enumerate(text):
            if self._value is None:
                self._value = JsonValue(character)
            elif self._value.ends_with(character):
                self.done, self.rest = True, text[position + 1 :]
                return [Part("arguments", text[: position + 1])]
        return [Part("arguments", text)] if text else []
