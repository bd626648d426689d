"""Calls in JSON, read character by character: an object, a list of objects, or arguments alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from atom_server.output.parts import CallBody, Part

ARGUMENTS_KEYS = ("arguments", "parameters")


class JsonValue:
    """Finds the end of one JSON object, array or string. Numbers and words end where something else begins."""

    def __init__(self, first: str) -> None:
        self.is_scalar = first not in '{["'
        self._depth = int(first in "{[")
        self._in_string = first == '"'
        self._escaped = False

    def ends_with(self, character: str) -> bool:
        """Whether this character, which follows the others, is the last."""
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = character == "\\"
            self._in_string = character != '"'
            return not self._in_string and self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


class CallObject(CallBody):
    """``{"name": ..., "arguments": {...}}``: one call. Arguments stream as soon as the name is known.

    Args:
        name_key: the key of the function's name.
        arguments_keys: keys that its arguments may have.
    """

    def __init__(self, name_key: str = "name", arguments_keys: Sequence[str] = ARGUMENTS_KEYS) -> None:
        self._name_key, self._arguments_keys = name_key, arguments_keys
        self._state = "open"
        self._key = ""
        self._raw = ""
        self._value: JsonValue | None = None
        self._name: str | None = None
        self._waiting = ""
        self._has_arguments = False

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for position, character in enumerate(text):
            try:
                parts += self.take(character)
            except ValueError:
                self.done = True
            if self.done:
                self.rest = text[position:].removeprefix("}")
                break
        return parts

    def take(self, character: str) -> list[Part]:
        """The parts that one more character makes certain; none after `done`.

        Raises:
            ValueError: this is no such object.
        """
        if self._state == "value":
            return self._in_value(character)
        if self._state == "key-text":
            self._raw += character
            if self._value is not None and self._value.ends_with(character):
                self._key, self._state = json.loads(self._raw, strict=False), "colon"
        elif character.isspace():
            pass
        elif self._state == "open":
            if character != "{":
                raise ValueError("not an object")
            self._state = "key"
        elif self._state == "colon":
            if character != ":":
                return self._begin_value(character)
        elif character == '"':
            self._state, self._raw, self._value = "key-text", character, JsonValue(character)
        elif character == "}":
            return self._close()
        elif character != ",":
            raise ValueError("not a key")
        return []

    def _begin_value(self, first: str) -> list[Part]:
        self._state, self._raw, self._value = "value", first, JsonValue(first)
        return self._arguments(first) if self._streams() else []

    def _in_value(self, character: str) -> list[Part]:
        value = self._value
        if value is None:
            raise ValueError("no value")
        if value.is_scalar:
            if character in ",}":
                self._state = "key"
                return self._end_value() + self.take(character)
            self._raw += character
            return []
        self._raw += character
        parts = self._arguments(character) if self._streams() else []
        if value.ends_with(character):
            self._state = "key"
            parts += self._end_value()
        return parts

    def _streams(self) -> bool:
        return self._key in self._arguments_keys and self._raw[:1] == "{"

    def _end_value(self) -> list[Part]:
        if self._key == self._name_key:
            name = json.loads(self._raw, strict=False)
            if not isinstance(name, str):
                raise ValueError("the name is no string")
            self._name = name
            waiting, self._waiting = self._waiting, ""
            return [Part("name", name), *([Part("arguments", waiting)] if waiting else [])]
        if self._key in self._arguments_keys and not self._streams():
            value = json.loads(self._raw, strict=False)
            return self._arguments(value if isinstance(value, str) else "{}" if value is None else self._raw)
        return []

    def _arguments(self, text: str) -> list[Part]:
        self._has_arguments = True
        if self._name is None:
            self._waiting += text
            return []
        return [Part("arguments", text)]

    def _close(self) -> list[Part]:
        if self._name is None:
            raise ValueError("no name")
        self.done = True
        return [] if self._has_arguments else [Part("arguments", "{}")]


class ListBody(CallBody):
    """``[{...}, {...}]``, as many calls as it has objects."""

    def __init__(self, name_key: str, arguments_keys: Sequence[str]) -> None:
        self._keys = (name_key, arguments_keys)
        self._object: CallObject | None = None

    def feed(self, text: str) -> list[Part]:
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
            self._object = CallObject(*self._keys)
            return text
        self.done = not (character.isspace() or character in "[,")
        return text.removeprefix("]") if self.done else text[1:]


class JsonBody(CallBody):
    """Arguments alone, as JSON."""

    def __init__(self) -> None:
        self._value: JsonValue | None = None

    def feed(self, text: str) -> list[Part]:
        for position, character in enumerate(text):
            if self._value is None:
                self._value = JsonValue(character)
            elif self._value.ends_with(character):
                self.done, self.rest = True, text[position + 1 :]
                return [Part("arguments", text[: position + 1])]
        return [Part("arguments", text)] if text else []
