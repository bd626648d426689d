"""Which layers a rule of a published config means. Each family of quantizers spells its rules in its own way.

Names are those of the checkpoint. Some writers leave out what comes before the layers, so a rule may fit the name
without its first components as well. Configs may list hundreds of rules, and mixtures have tens of thousands of layers:
a rule that is a plain text is looked up, and the others are compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate

# What wrappers put before the names of the language model.
_WRAPPERS = ("model.", "language_model.", "model.language_model.", "language_model.model.")
_PLAIN_TEXT = re.compile(r"[\w.-]*")
_NOTHING = re.compile(r"(?!)")


@dataclass(frozen=True)
class Dialect:
    """How a family of quantizers spells its rules.

    Attributes:
        texts: a name -> the plain texts that mean it as rules.
        pattern: a rule -> the regular expression of how the names begin that it means; None if it is a plain text.
        mark: rules that begin so are regular expressions by declaration, and wrong where they are none; None if no
            rule is, and what cannot be read means nothing.
    """

    texts: Callable[[str], Iterable[str]]
    pattern: Callable[[str], str | None]
    mark: str | None = None

    def why_not(self, rule: str) -> str | None:
        """Why a rule that is a regular expression by declaration is none."""
        pattern = self.pattern(rule) if self.mark is not None and rule.startswith(self.mark) else None
        try:
            re.compile(pattern or "")
        except re.error as error:
            return f"its regular expression is not valid ({error})"
        return None


class Rules:
    """Rules of one dialect, in the order of the config."""

    def __init__(self, rules: Sequence[str], dialect: Dialect) -> None:
        self._rules, self._texts = rules, dialect.texts
        self._places: dict[str, int] = {}
        self._patterns: list[tuple[int, re.Pattern[str]]] = []
        for place, rule in enumerate(rules):
            pattern = dialect.pattern(rule)
            if pattern is None:
                self._places.setdefault(rule, place)
            else:
                self._patterns.append((place, _compile(pattern)))

    def first_match(self, name: str) -> str | None:
        """The first rule that means the layer."""
        if not self._rules:
            return None
        spellings = list(_spellings(name))
        texts = (text for spelling in spellings for text in self._texts(spelling))
        places = [self._places[text] for text in texts if text in self._places]
        patterns = self._patterns
        places += [place for place, pattern in patterns if any(pattern.match(spelling) for spelling in spellings)]
        return self._rules[min(places)] if places else None


def _component_pattern(rule: str) -> str | None:
    return None if _PLAIN_TEXT.fullmatch(rule) else rf"(?:{rule})(?:(?<=\.)|(?=\.|$))"


def _target_pattern(rule: str) -> str | None:
    return rule[3:] if rule.startswith("re:") else None


def _glob_pattern(rule: str) -> str | None:
    if rule.startswith("re:"):
        return rule[3:]
    return translate(rule) if any(mark in rule for mark in "*?[") else None


def _beginnings(name: str) -> Iterator[str]:
    """The name, and what it begins with up to each of its dots."""
    yield name
    for place, character in enumerate(name):
        if character == ".":
            yield name[:place]


def _component_texts(name: str) -> Iterator[str]:
    for beginning in _beginnings(name):
        yield beginning
        yield f"{beginning}."
    for place in range(1, len(name)):
        yield name[place:]


def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern that cannot be read means nothing."""
    try:
        return re.compile(pattern)
    except re.error:
        return _NOTHING


def _spellings(name: str) -> Iterator[str]:
    yield name
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            yield name.removeprefix(wrapper)
        else:
            yield wrapper + name


# Hugging Face's own formats: the name's end, or a pattern of the components that it begins with.
BY_COMPONENT = Dialect(_component_texts, _component_pattern)
# compressed-tensors: the name, a pattern after ``re:`` of how it begins, or the class, which is Linear here.
BY_TARGET = Dialect(lambda name: (name, "Linear"), _target_pattern, "re:")
# AutoAWQ: any part of the name.
BY_PART = Dialect(lambda name: (), lambda rule: f".*{re.escape(rule)}")
# GPTQ: a pattern of how the name begins, behind ``+:`` or ``-:`` or nothing.
BY_SIGN = Dialect(lambda name: (), lambda rule: rule[2:] if rule.startswith(("+:", "-:")) else rule, "")
# Quark and modelopt: the name or the first of its components, with ``*`` for anything, or a pattern after ``re:``.
BY_GLOB = Dialect(_beginnings, _glob_pattern, "re:")
