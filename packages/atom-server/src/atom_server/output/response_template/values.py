"""From a field's text to its value: the content parsers and transforms of response templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import regex

# Seconds that one regular expression of a checkpoint may take on a text that a client may have shaped.
PATIENCE = 1.0
_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")
_BARE_KEY = regex.compile(r"(?<=[{,])(\w+):")


def parse_content(text: str, name: str, args: Mapping[str, Any]) -> Any:
    """The value of `text`.

    Raises:
        ValueError: it has none.
        TimeoutError: it took the template's regular expressions too long.
    """
    return CONTENT_PARSERS[name](text, args)


def transformed(shape: Any, scope: Mapping[str, Any]) -> Any:
    """`shape` with each text ``{name}`` or ``{name.key}`` replaced by what it names.

    Raises:
        ValueError: it names what is not there.
    """
    if isinstance(shape, Mapping):
        return {key: transformed(value, scope) for key, value in shape.items()}
    if isinstance(shape, list):
        return [transformed(value, scope) for value in shape]
    path = placeholder(shape)
    if path is None:
        return shape
    value: Any = scope
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"there is no {key!r}")
        value = value[key]
    return value


def placeholder(shape: Any) -> tuple[str, ...] | None:
    """The path that a text of a transform names; None where it names nothing."""
    found = _PLACEHOLDER.fullmatch(shape) if isinstance(shape, str) else None
    return None if found is None else tuple(found[1].split("."))


def check_transform(shape: Any) -> None:
    """Raise ValueError for a text that is partly a placeholder."""
    for value in shape.values() if isinstance(shape, Mapping) else shape if isinstance(shape, list) else ():
        check_transform(value)
    if isinstance(shape, str) and placeholder(shape) is None and _PLACEHOLDER.search(shape):
        raise ValueError(f"{shape!r} mixes text and a placeholder")


def strict_json(text: str) -> Any:
    """The value of JSON text, in which numbers are numbers.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _text(text: str, args: Mapping[str, Any]) -> str:
    return text.strip() if args.get("strip", True) else text


def _bool(text: str, args: Mapping[str, Any]) -> bool:
    return _text(text, args).lower() in ("true", "1")


def _json(text: str, args: Mapping[str, Any]) -> Any:
    """JSON, or with `string_delims` and `unquoted_keys` something like it; `allow_non_json` takes any text."""
    strings: list[str] = []

    def keep(found: regex.Match[str]) -> str:
        strings.append(found[1])
        return f"\x01{len(strings) - 1}\x02"

    working = text
    delimiters = args.get("string_delims") or ()
    if delimiters and ("\x01" in text or "\x02" in text):
        raise ValueError("it has control characters")
    for begin, end in delimiters:
        working = regex.sub(regex.escape(begin) + "(.*?)" + regex.escape(end), keep, working, flags=regex.DOTALL)
    if args.get("unquoted_keys"):
        working = _BARE_KEY.sub(r'"\1":', working)
    for number, string in enumerate(strings):
        working = working.replace(f"\x01{number}\x02", json.dumps(string))
    try:
        return strict_json(working)
    except ValueError:
        if args.get("allow_non_json"):
            return text.strip()
        raise


def _tags(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """What `tag_pattern` finds: its groups "key" and "value"."""
    found: dict[str, Any] = {}
    for key, text_of_it, _ in tags_in(text, args):
        value = inner_value(text_of_it, args)
        if key in found and args.get("merge_duplicates"):
            earlier = found[key] if isinstance(found[key], list) else [found[key]]
            value = [*earlier, value]
        found[key] = value
    return found


def tags_in(text: str, args: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Key, text and end of what a `tag_pattern` finds.

    Raises:
        ValueError: the pattern is none.
        TimeoutError: it took too long.
    """
    try:
        matches = list(regex.finditer(_pattern_of(args), text, regex.DOTALL, timeout=PATIENCE))
    except regex.error as error:
        raise ValueError(str(error)) from None
    return [(match["key"], match.groupdict().get("value") or "", match.end()) for match in matches]


def _pattern_of(args: Mapping[str, Any]) -> str:
    pattern = args.get("tag_pattern")
    if not isinstance(pattern, str) or "(?P<key>" not in pattern:
        raise ValueError("'tag_pattern' needs a group 'key'")
    return pattern


def _lines(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Lines of a key and a value."""
    separator = args.get("kv_sep", ":")
    pairs = [_text(line, args).partition(separator) for line in text.split(args.get("line_sep", "\n"))]
    return {_text(key, args): inner_value(_text(value, args), args) for key, found, value in pairs if found}


def inner_value(text: str, args: Mapping[str, Any]) -> Any:
    """The value of a tag or line, by its `value_parser`; without one, the text."""
    inner = args.get("value_parser")
    return text if inner is None else parse_content(text, inner.get("name", "text"), inner.get("args") or {})


CONTENT_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _text,
    "int": lambda text, args: int(text.strip()),
    "float": lambda text, args: float(text.strip()),
    "bool": _bool,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
