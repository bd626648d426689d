"""The text that a regular expression of a response template stands for, where it is plain enough to stand for one."""

from __future__ import annotations

from dataclasses import dataclass

_CLASSES = "sSdDwW"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_NOTHING = frozenset("*?")


@dataclass(frozen=True)
class Group:
    """A named group."""

    name: str


Piece = str | Group
# None stands for a character that may be any of several.
_Pieces = list[Piece | None]


def pieces_of(pattern: str) -> list[Piece] | None:
    """Texts and named groups in their order, what may be missing left out; None where that says too little."""
    reader = _Reader(pattern)
    try:
        pieces = reader.alternatives()
    except (ValueError, IndexError):
        return None
    if reader.rest() or None in pieces:
        return None
    return _joined([piece for piece in pieces if piece is not None])


def _joined(pieces: list[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        elif piece != "":
            result.append(piece)
    return result


class _Reader:
    """Descends into the pattern; ValueError for what it does not know, IndexError where it ends too early."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0

    def rest(self) -> str:
        return self._pattern[self._place :]

    def alternatives(self) -> _Pieces:
        """The first alternative that says anything."""
        found = [self._sequence()]
        while self.rest().startswith("|"):
            self._place += 1
            found.append(self._sequence())
        return next((pieces for pieces in found if pieces), [])

    def _sequence(self) -> _Pieces:
        pieces: _Pieces = []
        while self.rest() and self.rest()[0] not in "|)":
            unit = self._unit()
            pieces += [] if self._may_be_missing() else unit
        return pieces

    def _unit(self) -> _Pieces:
        character = self._take()
        if character == "\\":
            escaped = self._take()
            if escaped in _CLASSES:
                return [None] if escaped != "s" else ["\n"]
            if escaped.isalnum() and escaped not in _ESCAPES:
                return []  # a place between characters, or something rarer
            return [_ESCAPES.get(escaped, escaped)]
        if character in "^$":
            return []
        if character == ".":
            return [None]
        if character == "[":
            self._place = 1 + self._pattern.index("]", self._place + 1 + self.rest().startswith("^"))
            return [None]
        return self._group() if character == "(" else [character]

    def _group(self) -> _Pieces:
        name = None
        if self.rest().startswith("?P<"):
            name, _, _ = self.rest()[3:].partition(">")
            self._place += 4 + len(name)
        elif self.rest().startswith("?:"):
            self._place += 2
        elif self.rest().startswith("?"):
            raise ValueError("a condition")
        inside = self.alternatives()
        if self._take() != ")":
            raise ValueError("no end")
        return inside if name is None else [Group(name)]

    def _may_be_missing(self) -> bool:
        quantifier = self.rest()[:1]
        if quantifier == "{":
            raise ValueError("a count")
        if quantifier not in ("*", "+", "?"):
            return False
        self._place += 1
        if self.rest()[:1] in ("?", "+"):
            self._place += 1
        return quantifier in _NOTHING

    def _take(self) -> str:
        character = self._pattern[self._place]
        self._place += 1
        return character
