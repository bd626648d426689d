"""Which layers a rule of a published config means. Each family of quantizers spells its rules in its own way.

Names are those of the checkpoint. Some writers leave out what comes before the layers, so a rule may fit the name
without its first components as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

Rule = Callable[[str, str], bool]

# What wrappers put before the names of the language model.
_WRAPPERS = ("model.", "language_model.", "model.language_model.", "language_model.model.")


def first_match(rules: Sequence[str], name: str, matches: Rule) -> str | None:
    """The first rule that means the layer."""
    spellings = list(_spellings(name))
    return next((rule for rule in rules if any(matches(rule, spelling) for spelling in spellings)), None)


def by_component(rule: str, name: str) -> bool:
    """Hugging Face's own formats: the name's end, or a pattern of the components that it begins with."""
    return name.endswith(rule) or _matches(rf"(?:{rule})(?:(?<=\.)|(?=\.|$))", name)


def by_target(rule: str, name: str) -> bool:
    """compressed-tensors: the name, a pattern after ``re:`` of how it begins, or the class, which is Linear here."""
    if rule.startswith("re:"):
        return _matches(rule[3:], name)
    return rule in (name, "Linear")


def by_part(rule: str, name: str) -> bool:
    """AutoAWQ: any part of the name."""
    return rule in name


def by_glob(rule: str, name: str) -> bool:
    """Quark and modelopt: the name, with ``*`` for anything, or a pattern after ``re:``."""
    if rule.startswith("re:"):
        return _matches(rule[3:], name)
    return fnmatchcase(name, rule) or name.startswith(f"{rule}.")


def _matches(pattern: str, name: str) -> bool:
    """Whether the name begins so; a pattern that cannot be read means nothing."""
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


def _spellings(name: str) -> Iterator[str]:
    yield name
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            yield name.removeprefix(wrapper)
        else:
            yield wrapper + name
