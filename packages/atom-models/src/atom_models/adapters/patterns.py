"""PEFT's patterns: regular expressions that end a module's name, each with a number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atom_models.adapters.errors import AdapterError

LONGEST = 200
# Files come from anybody, and a pattern that goes back and forth for hours would hold up the engine: a repeated part
# is one character, and there are few of them.
MOST_REPEATS = 3
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_REPEAT = re.compile(r"(?<!\\)[*+?{]")


class Patterns:
    """The numbers of modules that differ from the others; the first pattern that fits a name decides.

    Args:
        field: the field of adapter_config.json.
        given: its value.
    """

    def __init__(self, field: str, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise AdapterError(f"{field} is {given!r}; it must be an object of patterns and numbers")
        self._numbers = [(_compiled(field, pattern), _number(field, number)) for pattern, number in given.items()]

    def number_of(self, module: str, default: float) -> float:
        """The number of a module."""
        return next((number for pattern, number in self._numbers if pattern.match(module)), default)


def _compiled(field: str, pattern: str) -> re.Pattern[str]:
    if len(pattern) > LONGEST or _REPEATED_GROUP.search(pattern) or len(_REPEAT.findall(pattern)) > MOST_REPEATS:
        raise AdapterError(
            f"{field} has the pattern {pattern[:LONGEST]!r}; allowed are {LONGEST} characters, of which at most "
            f"{MOST_REPEATS} repeat a single character: write the modules out"
        )
    try:
        return re.compile(rf"(?:.*\.)?({pattern})$")
    except re.error as error:
        raise AdapterError(f"{field} has the pattern {pattern!r}, which is no regular expression: {error}") from None


def _number(field: str, number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e6:
        raise AdapterError(f"{field} has the number {number!r}; it must be above 0")
    return float(number)
