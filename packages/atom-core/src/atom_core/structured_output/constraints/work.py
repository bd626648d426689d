"""How much work a constraint asks for, judged from its text before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Characters that a pattern spells out at most: `(a{100}){50}` are 5,000.
MAX_PATTERN_SIZE = 10_000
# An automaton has a state for each remainder of a "multipleOf".
MAX_REMAINDERS = 20_000
# `{n}`, `{n,}` or `{n,m}` behind a part of a pattern.
_REPEAT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def too_much_work(kind: str, value: Any) -> str | None:
    """What of a constraint takes too much work, in words; None where nothing is known to.

    Args:
        kind: as `kind_of`.
        value: a pattern of kind "regex", JSON as an object otherwise.
    """
    if kind == "regex":
        return _of_pattern(value)
    if kind not in ("json", "structural_tag"):
        return None
    remainders = 0
    for node in _objects(value):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and (problem := _of_pattern(pattern)):
            return problem
        remainders += _num_remainders(node.get("multipleOf"))
    if remainders > MAX_REMAINDERS:
        return f"its 'multipleOf' have {remainders} remainders to tell apart; at most {MAX_REMAINDERS} are allowed"
    return None


def num_objects(value: Any) -> int:
    """Objects within JSON, itself included: of a schema, about the number of its parts."""
    return sum(1 for _ in _objects(value))


def pattern_size(pattern: str) -> int:
    """Characters and classes that a pattern stands for with its repeats written out.

    Read loosely: what is no pattern has some size too. `{n,}` counts as n and one more.
    """
    sizes, last, place = [0], 0, 0
    while place < len(pattern):
        character = pattern[place]
        if repeat := _REPEAT.match(pattern, place):
            least, comma, most = repeat.groups()
            times = int(most) if most else int(least) + (1 if comma else 0)
            sizes[-1] += last * (max(times, 1) - 1)
            last *= max(times, 1)
            place = repeat.end()
            continue
        if character == "(":
            sizes.append(0)
        elif character == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif character not in "*+?|^$)":
            last = 1
            sizes[-1] += 1
        if character == "\\":
            place += 2
        elif character == "[" and (whole := _CLASS.match(pattern, place)):
            place = whole.end()
        else:
            place += 1
    return sum(sizes)


def _of_pattern(pattern: str) -> str | None:
    size = pattern_size(pattern)
    if size <= MAX_PATTERN_SIZE:
        return None
    return f"a pattern whose repeats stand for {_count(size)} characters; at most {MAX_PATTERN_SIZE} are allowed"


def _num_remainders(step: Any) -> int:
    """Remainders of division by a "multipleOf": 0.05 is a twentieth, and tells 5 of them apart in its last digits."""
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < float("inf"):
        return 0
    if isinstance(step, int) or step.is_integer():
        return min(int(step), MAX_REMAINDERS + 1)
    _, _, decimals = f"{step:.12f}".rstrip("0").partition(".")
    return min(round(step * 10 ** len(decimals)), MAX_REMAINDERS + 1)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, dict):
            yield item
            level.extend(item.values())
        elif isinstance(item, list | tuple):
            level.extend(item)


def _count(number: int) -> str:
    return str(number) if number < 10**9 else "more than a billion"
