"""`SuffixIndex`: a text that grows, and the places in it that stand behind the same tokens as the end of a request."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Tokens by which places are found. Those that agree in the larger number come first: of a text that often has the same
# few tokens, the shorter ones would find but the latest places.
KEY_LENGTHS = (8, 2)
# Places that are compared, the latest first.
MOST_COMPARED = 8
# Ends an output: it agrees with nothing and is never guessed.
END = -1
_SMALLEST = 256


class Place(NamedTuple):
    """Where a text has stood before.

    Attributes:
        start: the first token behind what agrees.
        length: tokens before it that agree.
    """

    start: int
    length: int


class SuffixIndex:
    """Answers what the part of a suffix tree under the end of a request would, for the latest places of that part.

    A node of such a tree costs some hundred bytes in Python. Here a place costs the links of two chains, as in LZ77: 28
    bytes a token, those of the text included. A token is taken in at a constant cost, and asking costs no more than
    `MOST_COMPARED` comparisons.

    Args:
        most_tokens: beyond so many tokens the earlier half is forgotten.

    Attributes:
        tokens: what is kept of the text.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self.tokens = array("i")
        self._chains = tuple(_Chain(length) for length in KEY_LENGTHS)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Put tokens behind the text. `catch_up` makes places of them."""
        self.tokens.extend(token_ids)
        if len(self.tokens) > self._most_tokens:
            self.forget(len(self.tokens) - self._most_tokens // 2)

    def forget(self, num_tokens: int) -> None:
        """Forget the first tokens."""
        del self.tokens[:num_tokens]
        self._chains = tuple(_Chain(length) for length in KEY_LENGTHS)

    def catch_up(self, most: int) -> None:
        """Make places of the tokens that are none yet, of `most` at most."""
        for chain in self._chains:
            chain.catch_up(self.tokens, most)

    def places(self, end: Sequence[int], longest: int) -> list[Place]:
        """The latest places behind tokens that agree with the last ones of `end`, up to `longest` of them."""
        for chain in self._chains:
            if found := chain.places(self.tokens, end, longest):
                return found
        return []


class _Chain:
    """For each hash of so many tokens the last place behind such tokens, and for each place the one before it."""

    def __init__(self, key_length: int) -> None:
        self._key_length = key_length
        self._last, self._before = _nowhere(_SMALLEST), array("i")

    def catch_up(self, tokens: array[int], most: int) -> None:
        if len(tokens) > len(self._last):
            self._last, self._before = _nowhere(2 * len(tokens)), array("i")
        # Nothing is behind the last token yet.
        for end in range(len(self._before), min(len(tokens) - 1, len(self._before) + most)):
            if end < self._key_length - 1:
                self._before.append(-1)
                continue
            key = self._key(tokens[end + 1 - self._key_length : end + 1])
            self._before.append(self._last[key])
            self._last[key] = end

    def places(self, tokens: array[int], end: Sequence[int], longest: int) -> list[Place]:
        if len(end) < self._key_length:
            return []
        found: list[Place] = []
        place = self._last[self._key(end[-self._key_length :])]
        for _ in range(MOST_COMPARED):
            if place < 0:
                break
            length = _agreement(tokens, place, end, longest)
            # Other tokens may have the same hash.
            if length >= min(self._key_length, longest):
                found.append(Place(place + 1, length))
            place = self._before[place]
        return found

    def _key(self, tokens: Sequence[int]) -> int:
        return hash(tuple(tokens)) % len(self._last)


def _agreement(tokens: array[int], place: int, end: Sequence[int], longest: int) -> int:
    """How many tokens up to `place` are the last ones of `end`."""
    most = min(longest, place + 1, len(end))
    length = 0
    for token in reversed(end[len(end) - most :]):
        if tokens[place - length] != token:
            break
        length += 1
    return length


def _nowhere(size: int) -> array[int]:
    return array("i", [-1]) * size
