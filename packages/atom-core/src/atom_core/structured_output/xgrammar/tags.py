"""Structural tags in xgrammar's notation, with our JSON layout, and special tokens as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import xgrammar

from atom_core.structured_output.constraints import structural_tag as st


def xgrammar_format(format_: st.Format, split: Callable[[str], list[str | int]]) -> dict[str, Any]:
    """A format as xgrammar's compiler takes it; `split` parts texts at special tokens."""
    return _Writer(split).write(format_)


class _Writer:
    def __init__(self, split: Callable[[str], list[str | int]]) -> None:
        self._split = split

    def write(self, node: st.Format) -> dict[str, Any]:
        match node:
            case st.ConstString():
                return self._text(node.value)
            case st.JsonSchema():
                grammar = xgrammar.Grammar.from_json_schema(
                    json.dumps(node.json_schema), any_whitespace=False, strict_mode=False
                )
                return {"type": "grammar", "grammar": str(grammar)}
            case st.Regex():
                return {"type": "regex", "pattern": node.pattern}
            case st.AnyText():
                return {"type": "any_text", "excludes": node.excludes}
            case st.Or():
                return {"type": "or", "elements": [self.write(element) for element in node.elements]}
            case st.Sequence():
                followers = [*node.elements[1:], None]
                pairs = zip(node.elements, followers, strict=True)
                elements = [self.write(_ending_before(element, follower)) for element, follower in pairs]
                return {"type": "sequence", "elements": elements}
            case st.Optional() | st.Star() | st.Plus():
                return {"type": type(node).__name__.lower(), "content": self.write(node.content)}
            case st.Tag():
                return self._tagged(node)
            case st.TriggeredTags():
                return self._triggered(node)
            case _:
                return self._separated(node)

    def _text(self, text: str) -> dict[str, Any]:
        parts = [
            {"type": "token", "token": part} if isinstance(part, int) else {"type": "const_string", "value": part}
            for part in self._split(text)
        ]
        return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts} if parts else _EMPTY

    def _tagged(self, tag: st.Tag) -> dict[str, Any]:
        if all(isinstance(part, str) for text in (tag.begin, tag.end) for part in self._split(text)):
            return {"type": "tag", "begin": tag.begin, "content": self.write(tag.content), "end": tag.end}
        return self.write(st.Sequence([st.ConstString(tag.begin), tag.content, st.ConstString(tag.end)]))

    def _separated(self, node: st.TagsWithSeparator) -> dict[str, Any]:
        tags: dict[str, Any] = {"type": "or", "elements": [self._tagged(tag) for tag in node.tags]}
        if not node.stop_after_first and node.max_tags != 1:
            more = {"type": "sequence", "elements": [self._text(node.separator), tags]}
            repeated = {"type": "star", "content": more}
            if node.max_tags is not None:
                repeated = {"type": "repeat", "min": 0, "max": node.max_tags - 1, "content": more}
            tags = {"type": "sequence", "elements": [tags, repeated]}
        return tags if node.at_least_one else {"type": "optional", "content": tags}

    def _triggered(self, node: st.TriggeredTags) -> dict[str, Any]:
        tags = [self._tagged(tag) for tag in node.tags]
        if all(tag["type"] == "tag" for tag in tags):
            fields = {
                name: getattr(node, name) for name in ("triggers", "at_least_one", "stop_after_first", "excludes")
            }
            return {"type": "triggered_tags", "tags": tags, **fields}
        # A special token cannot be part of free text, so it ends there by itself.
        first: dict[str, Any] = {"type": "or", "elements": tags}
        text = {"type": "any_text", "excludes": [*node.excludes, *self._text_triggers(node)]}
        more = {"type": "sequence", "elements": [text, first]}
        if node.stop_after_first:
            return first if node.at_least_one else {"type": "or", "elements": [more, text]}
        rest = [{"type": "star", "content": more}, text]
        return {"type": "sequence", "elements": [first, *rest] if node.at_least_one else rest}

    def _text_triggers(self, node: st.TriggeredTags) -> list[str]:
        return [trigger for trigger in node.triggers if self._split(trigger) == [trigger]]


def _ending_before(element: st.Format, follower: st.Format | None) -> st.Format:
    """Free text ends where the text after it first occurs; the library would go on."""
    text = None if follower is None else st.first_text(follower)
    return st.AnyText([*element.excludes, text]) if isinstance(element, st.AnyText) and text else element


_EMPTY: dict[str, Any] = {"type": "const_string", "value": ""}
