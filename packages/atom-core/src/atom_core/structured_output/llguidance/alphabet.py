"""Which ASCII characters a pattern or a grammar tells apart: most patterns treat ``a`` and ``q`` alike.

Reads what a constraint is written in, not what it means: characters that are written out stand for themselves, and sets
of characters part the others. Whatever is not understood makes an answer impossible, never a wrong one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator

NUM_ASCII = 128
MAX_SETS = 512
_SETS = {"d": string.digits, "w": string.ascii_letters + string.digits + "_", "s": " \t\n\v\f\r"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ESCAPE = r"\\(?:[xu]\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^xu])"
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
_IN_CLASS = re.compile(rf"({_ESCAPE}|[^\\\[])(?:-({_ESCAPE}|[^\\\[]))?", re.DOTALL)
_IN_PATTERN = re.compile(
    rf"\[\^?(?P<class>\]?(?:{_ESCAPE}|[^\]\\])*)\]|\(\?(?::|s:)|\((?!\?)|\{{\d+(?:,\d*)?\}}|{_ESCAPE}|[^\\\[(]", re.S
)
_LITERAL_ENDS = r"(?![a-zA-Z])(?!\s*\.\.)"
_IN_LARK = re.compile(
    rf'"(?P<text>(?:\\.|[^"\\\n])*)"{_LITERAL_ENDS}|/(?P<pattern>(?:\\.|[^/\\\n])+)/{_LITERAL_ENDS}'
    r"|//[^\n]*|[\s\w:|()*+?,.{}&~=\[\]-]"
)


class UnknownNotationError(ValueError):
    """The constraint holds something that this module cannot read."""


def same_characters(sets: Iterable[str]) -> tuple[str, ...]:
    """Parts ASCII into characters that each of `sets` holds together or leaves out together.

    Raises:
        UnknownNotationError: so many sets that hardly any characters could be alike.
    """
    found = [frozenset(one) for one in dict.fromkeys(sets)]
    if len(found) > MAX_SETS:
        raise UnknownNotationError(f"{len(found)} sets")
    parts: dict[tuple[bool, ...], str] = {}
    for character in map(chr, range(NUM_ASCII)):
        holders = tuple(character in one for one in found)
        parts[holders] = parts.get(holders, "") + character
    return tuple(parts.values())


def sets_of_pattern(pattern: str) -> Iterator[str]:
    """The sets of characters that a regular expression names.

    Raises:
        UnknownNotationError: flags other than one for both cases at its start, classes within classes, Unicode's
            properties.
    """
    if pattern.startswith("(?i)"):
        yield from (one + one.swapcase() for one in sets_of_pattern(pattern[4:]))
        return
    for found in _each(_IN_PATTERN, pattern):
        text, of_class = found[0], found["class"]
        if of_class is not None:
            yield from _sets_of_class(of_class)
        elif text == ".":
            yield from "\n\r"
        elif text[0] == "\\" or (len(text) == 1 and text not in "()|*+?^$"):
            yield _set_of(text)


def sets_of_lark(grammar: str) -> Iterator[str]:
    """The sets of characters that a grammar in Lark's notation names.

    Raises:
        UnknownNotationError: special tokens, ranges, flags, JSON schemas and imports; and see `sets_of_pattern`.
    """
    if grammar.lstrip().startswith("{"):
        raise UnknownNotationError(grammar)  # a grammar of another notation within JSON
    for found in _each(_IN_LARK, grammar.removeprefix("%llguidance {}")):
        if found["pattern"] is not None:
            yield from sets_of_pattern(found["pattern"])
        for character in _each(_CHARACTER, found["text"] or ""):
            if character[0][1:] in _SETS:
                raise UnknownNotationError(character[0])
            yield _set_of(character[0])


def _each(notation: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    place = 0
    while place < len(text):
        found = notation.match(text, place)
        if found is None:
            raise UnknownNotationError(text[place:])
        yield found
        place = found.end()


def _sets_of_class(items: str) -> Iterator[str]:
    if any(operator in items for operator in ("&&", "--", "~~")):
        raise UnknownNotationError(items)
    for found in _each(_IN_CLASS, items):
        first, last = _set_of(found[1]), _set_of(found[2] or "")
        if not last:
            yield first
        elif len(first) != 1 or len(last) != 1:
            raise UnknownNotationError(found[0])
        else:
            yield "".join(map(chr, range(ord(first), min(ord(last) + 1, NUM_ASCII))))


def _set_of(text: str) -> str:
    """The characters that an escape, or a character by itself, stands for."""
    if len(text) < 2:
        return text
    kind, digits = text[1], text[2:].strip("{}")
    if digits:
        return chr(int(digits, 16)) if int(digits, 16) <= 0x10FFFF else ""
    known = _SETS.get(kind.lower()) or _CONTROLS.get(kind)
    if known is None and (kind.isalnum() or not kind.isascii()):
        raise UnknownNotationError(text)
    return known or kind
