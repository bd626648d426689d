"""Structural tags in llguidance's Lark notation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance

from atom_core.structured_output.constraints import structural_tag as st
from atom_core.structured_output.constraints.grammar import GrammarError

# One layout, that of Python's json.dumps: free white space would let a model emit blanks without end.
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Split = Callable[[str], list[str | int]]
"""Parts a text at the special tokens in it: texts, and token ids."""


def lark_of(format_: st.Format, split: Split) -> str:
    """The grammar of a structural tag.

    Raises:
        GrammarError: free text stands before something that does not begin with a fixed text.
    """
    writer = _Writer(split)
    start = writer.write(format_)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, ""])


def json_of(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """A schema with our layout; layout options of its own are dropped. A boolean becomes the object that means it."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return {**schema, "x-guidance": JSON_LAYOUT}


class _Writer:
    """Writes expressions, and beside them the rules and terminals that they name."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._names: dict[str, str] = {}
        self.rules: list[str] = []

    def write(self, node: st.Format) -> str:
        """An expression that matches `node`."""
        match node:
            case st.ConstString():
                return self._literal(node.value)
            case st.JsonSchema():
                return f"%json {json.dumps(json_of(node.json_schema))}"
            case st.Regex():
                return f"/{llguidance.regex_to_lark(node.pattern, 'd')}/"
            case st.AnyText():
                return self._free_text(node.excludes)
            case st.Or():
                return f"({' | '.join(self.write(element) for element in node.elements)})"
            case st.Optional():
                return f"({self.write(node.content)})?"
            case st.Star():
                return f"({self.write(node.content)})*"
            case st.Plus():
                return f"({self.write(node.content)})+"
            case st.Sequence():
                return f"({self._in_turn(node.elements)})"
            case st.Tag():
                return f"({self._in_turn([st.ConstString(node.begin), node.content, st.ConstString(node.end)])})"
            case st.TriggeredTags():
                return self._triggered(node)
            case _:
                return self._separated(node)

    def _in_turn(self, elements: list[st.Format]) -> str:
        """Elements one after the other; free text among them ends where the text after it first occurs."""
        flat = [part for element in elements for part in _flat(element) if part != st.ConstString("")]
        parts: list[str] = []
        place = 0
        while place < len(flat):
            element = flat[place]
            following = flat[place + 1] if place + 1 < len(flat) else None
            if not isinstance(element, st.AnyText) or following is None:
                parts.append(self.write(element))
                place += 1
            elif isinstance(following, st.ConstString):
                parts.append(self._free_text_until(following.value, element.excludes))
                place += 2
            else:
                raise GrammarError("structural_tag: free text must be last, or come before a fixed text or a tag")
        return " ".join(parts) or '""'

    def _triggered(self, node: st.TriggeredTags) -> str:
        """Tags after free text; heads are shared by the tags of a trigger."""
        triggered = []
        for trigger in node.triggers:
            tags = st.tags_of_trigger(node, trigger)
            bodies = [self._in_turn([_without(tag, trigger), tag.content, st.ConstString(tag.end)]) for tag in tags]
            if tags:
                triggered.append(f"{self._free_text_until(trigger, node.excludes)} ({' | '.join(bodies)})")
        more = f"({' | '.join(triggered)})"
        first = f"({' | '.join(self.write(tag) for tag in node.tags)})"
        text = self._free_text(node.excludes)
        if node.stop_after_first:
            return first if node.at_least_one else f"({more} | {text})"
        return f"({first} {more}* {text})" if node.at_least_one else f"({more}* {text})"

    def _separated(self, node: st.TagsWithSeparator) -> str:
        tags = f"({' | '.join(self.write(tag) for tag in node.tags)})"
        if not node.stop_after_first and node.max_tags != 1:
            tags = self._named("tag", tags)
            more = "*" if node.max_tags is None else f"{{0,{node.max_tags - 1}}}"
            tags = f"({tags} ({self._literal(node.separator)} {tags}){more})"
        return tags if node.at_least_one else f"{tags}?"

    def _literal(self, text: str) -> str:
        return " ".join(_quoted(part) for part in self._split(text)) or '""'

    def _free_text_until(self, text: str, excludes: list[str]) -> str:
        """Free text and the first `text` after it. A special token cannot be part of text: it needs no care."""
        first, *rest = self._split(text) or [""]
        others = " ".join(_quoted(part) for part in rest)
        if isinstance(first, int):
            return f"{self._free_text(excludes)} {_quoted(first)} {others}"
        head = self._named("head", f"{self._free_text(excludes)} {_quoted(first)}", "[lazy]")
        return f"{head} {others}"

    def _free_text(self, excludes: list[str]) -> str:
        """The terminal of free text without `excludes`; it takes as much as it can."""
        pattern = "/(?s:.*)/"
        for text in excludes:
            pattern += f" & ~/(?s:.*){_escaped(text)}(?s:.*)/"
        return self._named("TEXT", pattern)

    def _named(self, prefix: str, body: str, attributes: str = "") -> str:
        """The name of a rule or terminal with this body, which is written once."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"{prefix}_{len(self._names)}"
            self.rules.append(f"{name}{attributes}: {body}")
        return name


def _flat(element: st.Format) -> list[st.Format]:
    """A tag or a sequence as its parts, so that free text before it sees the text that it begins with."""
    match element:
        case st.Tag():
            return [st.ConstString(element.begin), *_flat(element.content), st.ConstString(element.end)]
        case st.Sequence():
            return [part for child in element.elements for part in _flat(child)]
        case _:
            return [element]


def _without(tag: st.Tag, trigger: str) -> st.ConstString:
    return st.ConstString(tag.begin[len(trigger) :])


def _quoted(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part)


def _escaped(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)
