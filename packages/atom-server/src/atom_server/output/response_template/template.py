"""`ResponseTemplate`: the declaration in tokenizer_config.json, checked and compiled.

The format is transformers' ``response_template``, version 1 (its documentation: "Response Parsing").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import regex

from atom_server.output.response_template.marks import Mark
from atom_server.output.response_template.values import CONTENT_PARSERS, check_transform

Kind = Literal["content", "reasoning", "calls"]
KINDS: dict[str, Kind] = {
    "content": "content", "tool_calls": "calls",
    "reasoning_content": "reasoning", "reasoning": "reasoning", "thinking": "reasoning",
}  # fmt: skip
_TOP_KEYS = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
_FIELD_KEYS = frozenset(
    [
        *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
        *("repeats", "join", "optional", "transform", "transform_each"),
    ]
)


class ResponseTemplateError(ValueError):
    """A declaration that is not of the format; the message says where."""


@dataclass(frozen=True)
class Field:
    """One key of the message.

    Attributes:
        kind: what it is for clients; None where they have no place for it.
        begin: None for the field that takes what no other takes.
        end: None where it goes on to the end of the text.
        content, content_args: how its text is read, see `values.py`.
        join: between several texts of a field that repeats.
        transform, is_transformed_each: the shape that the value gets, or each entry of it.
    """

    name: str
    begin: Mark | None
    end: Mark | None
    content: str = "text"
    content_args: Mapping[str, Any] = field(default_factory=dict)
    join: str | None = None
    transform: Any = None
    is_transformed_each: bool = False

    @property
    def kind(self) -> Kind | None:
        return KINDS.get(self.name)


# What no field takes, where a template has none for answers.
ANSWER = Field("content", None, None)


@dataclass(frozen=True)
class ResponseTemplate:
    """The fields, and what a prompt's last turn begins with.

    Attributes:
        texts: every text and pattern that may hold a special token.
    """

    fields: tuple[Field, ...]
    start: Mark
    texts: tuple[str, ...] = ()

    @classmethod
    def load(cls, declared: Any) -> ResponseTemplate:
        """The template that a JSON value declares.

        Raises:
            ResponseTemplateError: it is none, or one of a later version.
        """
        _check("the template", declared, _TOP_KEYS)
        if declared.get("version", 1) != 1:
            raise ResponseTemplateError(f"version {declared['version']!r} is not known")
        fields = declared.get("fields")
        if not isinstance(fields, Mapping) or not fields:
            raise ResponseTemplateError("it needs 'fields'")
        loaded = tuple(_field(name, entry) for name, entry in fields.items())
        if len([entry.name for entry in loaded if entry.begin is None]) > 1:
            raise ResponseTemplateError("more than one field has neither 'open' nor 'open_pattern'")
        if all(entry.begin is not None and entry.kind != "content" for entry in loaded):
            loaded = (*loaded, ANSWER)
        start = _mark("the template", declared, "start_anchor")
        if start is None:
            raise ResponseTemplateError("it needs 'start_anchor' or 'start_anchor_pattern'")
        return cls(loaded, start, tuple(_texts(fields)))

    def field_of(self, kind: Kind) -> Field | None:
        """The first field of a kind."""
        return next((entry for entry in self.fields if entry.kind == kind), None)

    def without_calls(self) -> ResponseTemplate:
        """The template of a chat without functions."""
        return replace(self, fields=tuple(entry for entry in self.fields if entry.kind != "calls"))

    @property
    def leftover(self) -> Field | None:
        """The field that takes what no other takes."""
        return next((entry for entry in self.fields if entry.begin is None), None)


def _field(name: str, entry: Any) -> Field:
    where = f"field {name!r}"
    _check(where, entry, _FIELD_KEYS)
    begin, end = _mark(where, entry, "open"), _mark(where, entry, "close")
    content, transform = entry.get("content", "text"), entry.get("transform")
    if content not in CONTENT_PARSERS:
        raise ResponseTemplateError(f"{where}: its content {content!r} is none of {', '.join(CONTENT_PARSERS)}")
    join = entry.get("join")
    if join is not None and not (isinstance(join, str) and entry.get("repeats")):
        raise ResponseTemplateError(f"{where}: 'join' is a text, for a field that repeats")
    names = {name for mark in (begin, end) if mark is not None for name in mark.pattern.groupindex}
    if transform is None and (names or entry.get("transform_each")):
        raise ResponseTemplateError(f"{where}: it needs a 'transform'")
    try:
        check_transform(transform)
    except ValueError as error:
        raise ResponseTemplateError(f"{where}: {error}") from None
    each = bool(entry.get("transform_each", False))
    return Field(name, begin, end, content, dict(entry.get("content_args") or {}), join, transform, each)


def _check(where: str, value: Any, keys: frozenset[str]) -> None:
    if not isinstance(value, Mapping):
        raise ResponseTemplateError(f"{where} is no object")
    if unknown := sorted(set(value) - keys):
        raise ResponseTemplateError(f"{where} has unknown keys: {', '.join(map(str, unknown))}")


def _mark(where: str, entry: Mapping[str, Any], key: str) -> Mark | None:
    literals, pattern = entry.get(key), entry.get(f"{key}_pattern")
    if literals is not None and pattern is not None:
        raise ResponseTemplateError(f"{where} has both {key!r} and '{key}_pattern'")
    if pattern is not None:
        try:
            return Mark(regex.compile(pattern, regex.DOTALL))
        except (regex.error, TypeError) as error:
            raise ResponseTemplateError(f"{where}: '{key}_pattern' is no regular expression: {error}") from None
    if literals is None:
        return None
    texts = (literals,) if isinstance(literals, str) else tuple(literals) if isinstance(literals, list) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ResponseTemplateError(f"{where}: {key!r} is a text, or a list of texts")
    return Mark.of_texts(texts)


def _texts(value: Any) -> list[str]:
    """Every text within a JSON value, with the marks of regular expressions taken away."""
    if isinstance(value, str):
        return [value.replace("\\", "")]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for entry in values for text in _texts(entry)]
