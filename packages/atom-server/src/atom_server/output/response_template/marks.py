"""`Mark`: what begins or ends a field, and the search for it in text that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import regex

from atom_server.output.parts import held_back
from atom_server.output.response_template.values import PATIENCE


class Span(NamedTuple):
    """Where a mark is, or where it may come to be.

    Attributes:
        is_certain: it is there, whatever follows.
    """

    start: int
    end: int
    is_certain: bool
    captures: Mapping[str, str]

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True)
class Mark:
    """Texts, or a regular expression.

    Attributes:
        literals: the texts that it may be; empty for a regular expression.
    """

    pattern: regex.Pattern[str]
    literals: tuple[str, ...] = ()

    @classmethod
    def of_texts(cls, texts: tuple[str, ...]) -> Mark:
        """Any of some texts."""
        longest_first = sorted(texts, key=len, reverse=True)
        return cls(regex.compile("|".join(map(regex.escape, longest_first)), regex.DOTALL), texts)

    def search(self, text: str, place: int, *, at_end: bool) -> Span | None:
        """The first in `text` from `place`; before the end of the text also one that may become one.

        Raises:
            TimeoutError: it took too long.
        """
        return self._literal(text, place, at_end) if self.literals else self._matched(text, place, at_end)

    def _literal(self, text: str, place: int, at_end: bool) -> Span | None:
        found = [(start, -len(mark)) for mark in self.literals if (start := text.find(mark, place)) >= 0]
        start, length = min(found, default=(len(text), 0))
        if not at_end:
            pending = len(text) - max(
                held_back(text[max(place, len(text) - len(mark)) :], mark) for mark in self.literals
            )
            if pending < len(text) and pending <= start:
                return Span(pending, len(text), False, {})
        return Span(start, start - length, True, {}) if found else None

    def _matched(self, text: str, place: int, at_end: bool) -> Span | None:
        found = self.pattern.search(text, place, partial=not at_end, timeout=PATIENCE)
        if found is None:
            return None
        # More text may make it longer, or undo an end of the text.
        is_certain = at_end or not (found.partial or found.end() == len(text))
        captures = {name: caught for name, caught in found.groupdict().items() if caught is not None}
        return Span(found.start(), found.end(), is_certain, captures)
