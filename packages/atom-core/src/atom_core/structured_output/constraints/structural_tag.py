"""Structural tags: free text, texts, JSON and tags put together. The form is xgrammar's; both backends follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from atom_core.structured_output.constraints.grammar import MAX_TAGS, GrammarError


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """One node of a structural tag, told apart by its "type"."""


class ConstString(_Format, frozen=True, tag="const_string"):
    """This text."""

    value: str


class JsonSchema(_Format, frozen=True, tag="json_schema"):
    """JSON of a schema, laid out as by ``json.dumps``."""

    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class Regex(_Format, frozen=True, tag="regex"):
    """Text that the pattern matches as a whole."""

    pattern: str


class AnyText(_Format, frozen=True, tag="any_text"):
    """Free text in which none of `excludes` occurs; before a text or a tag it ends where that first begins."""

    excludes: list[str] = []


class Sequence(_Format, frozen=True, tag="sequence"):
    """One after the other."""

    elements: list[Format]


class Or(_Format, frozen=True, tag="or"):
    """One of these."""

    elements: list[Format]


class Optional(_Format, frozen=True, tag="optional"):
    """Once or not at all."""

    content: Format


class Star(_Format, frozen=True, tag="star"):
    """Any number of times."""

    content: Format


class Plus(_Format, frozen=True, tag="plus"):
    """Once or more."""

    content: Format


class Tag(_Format, frozen=True, tag="tag"):
    """`begin`, then `content`, then `end`."""

    begin: str
    content: Format
    end: str


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Free text; where one of `triggers` has been written, one of the tags that begin with it follows.

    With `at_least_one` it begins with a tag, with `stop_after_first` it ends after one.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    """Tags with `separator` between them, and nothing else: no more than `max_tags`, which xgrammar does not know."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False
    max_tags: int | None = None


Format = (
    ConstString
    | JsonSchema
    | Regex
    | AnyText
    | Sequence
    | Or
    | Optional
    | Star
    | Plus
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)

# What xgrammar has beyond these, by type or by field.
XGRAMMAR_TYPES = {"any_tokens", "dispatch", "exclude_token", "grammar", "qwen_xml_parameter", "repeat", "token"} | {
    "token_dispatch",
    "token_triggered_tags",
}
XGRAMMAR_FIELDS = {"any_order", "max_chars", "max_tokens", "max_whitespace_cnt", "style"}


def format_of(value: dict[str, Any]) -> Format | dict[str, Any]:
    """The format that a structural tag describes, in either notation.

    Args:
        value: ``{"type": "structural_tag", "format": {...}}``, or the older ``{"structures": [{"begin", "schema",
            "end"}], "triggers": [...]}``.

    Returns:
        The format; as it was given where only xgrammar knows what it asks for.

    Raises:
        GrammarError: it has not the shape of a structural tag.
    """
    raw = value.get("format") if "format" in value else _from_structures(value)
    try:
        format_ = msgspec.convert(raw, Format)
    except msgspec.ValidationError as error:
        if isinstance(raw, dict) and _is_for_xgrammar(raw):
            if any("max_tags" in node for node in nodes_of_any(raw)):
                raise GrammarError(
                    "structural_tag: xgrammar does not know 'max_tags', and has to follow this"
                ) from None
            return raw
        raise GrammarError(f"structural_tag: {error}") from None
    for node in nodes(format_):
        _check(node)
    return format_


def nodes(format_: Format) -> Iterator[Format]:
    """`format_` and everything in it."""
    yield format_
    match format_:
        case Sequence() | Or():
            children = format_.elements
        case Optional() | Star() | Plus() | Tag():
            children = [format_.content]
        case TriggeredTags() | TagsWithSeparator():
            children = format_.tags
        case _:
            children = []
    for child in children:
        yield from nodes(child)


def nodes_of_any(value: Any) -> Iterator[dict[str, Any]]:
    """Every node of a format as an object, whichever library knows what it asks for."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        yield value
        for name, child in value.items():
            if name != "json_schema":
                yield from nodes_of_any(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes_of_any(child)


def first_text(format_: Format) -> str | None:
    """The fixed text that a format begins with, if there is one."""
    match format_:
        case ConstString():
            return format_.value
        case Tag():
            return format_.begin
        case Sequence():
            return first_text(format_.elements[0])
        case _:
            return None


def tags_of_trigger(format_: TriggeredTags, trigger: str) -> list[Tag]:
    """Tags that begin with `trigger`; each tag belongs to the first trigger that it begins with."""
    return [tag for tag in format_.tags if trigger == _trigger_of(tag, format_.triggers)]


def _from_structures(value: dict[str, Any]) -> dict[str, Any]:
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise GrammarError(
            "structural_tag must have 'format', or the lists 'structures' and 'triggers', neither of them empty"
        )
    tags = []
    for item in structures:
        item = item if isinstance(item, dict) else {}
        begin, schema, end = item.get("begin"), item.get("schema", {}), item.get("end", "")
        if not isinstance(begin, str) or not isinstance(schema, dict) or not isinstance(end, str):
            raise GrammarError("structural_tag: a structure has the texts 'begin' and 'end', and 'schema', an object")
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _check(node: Format) -> None:
    if isinstance(node, Sequence | Or) and not node.elements:
        raise GrammarError("structural_tag: 'elements' must not be empty")
    if isinstance(node, AnyText | TriggeredTags) and not all(node.excludes):
        raise GrammarError("structural_tag: 'excludes' must be texts that are not empty")
    if isinstance(node, TriggeredTags | TagsWithSeparator) and not 1 <= len(node.tags) <= MAX_TAGS:
        raise GrammarError(f"structural_tag has {len(node.tags)} tags; 1 to {MAX_TAGS} are allowed")
    if isinstance(node, TagsWithSeparator) and node.max_tags is not None and not 1 <= node.max_tags <= MAX_TAGS:
        raise GrammarError(f"structural_tag: 'max_tags' must be from 1 to {MAX_TAGS}")
    if isinstance(node, TriggeredTags):
        if not all(node.triggers) or not 1 <= len(node.triggers) <= MAX_TAGS:
            raise GrammarError(f"structural_tag: 'triggers' must be 1 to {MAX_TAGS} texts that are not empty")
        for tag in node.tags:
            if _trigger_of(tag, node.triggers) is None:
                raise GrammarError(f"structural_tag: {tag.begin[:60]!r} begins with none of the triggers")


def _trigger_of(tag: Tag, triggers: list[str]) -> str | None:
    return next((trigger for trigger in triggers if tag.begin.startswith(trigger)), None)


def _is_for_xgrammar(value: dict[str, Any]) -> bool:
    """Whether a node of `value` has a type or a field that xgrammar alone knows."""
    return any(node.get("type") in XGRAMMAR_TYPES or XGRAMMAR_FIELDS & node.keys() for node in nodes_of_any(value))
