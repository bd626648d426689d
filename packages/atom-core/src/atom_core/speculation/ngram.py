"""`NgramDrafter`: a request goes on as it did when its last tokens stood there before (prompt lookup decoding)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from atom_core.speculation.drafter import NO_DRAFT, Draft

# Tokens that one call indexes. A long prompt is caught up with over some steps, so that none of them takes long.
MOST_INDEXED = 4096
# Earlier places that are compared, the latest first.
MOST_COMPARED = 8
_SMALLEST = 256


class NgramDrafter:
    """Finds the place before whose tokens agree with the last ones furthest, and proposes what followed it there.

    The index is a chain of places for each hash of `shortest` tokens, as in LZ77: at most 20 bytes a token. One step
    costs no more than its new tokens, `MOST_COMPARED` comparisons and the drafts.

    Args:
        shortest: last tokens that must agree.
        longest: tokens that are compared; of places that agree as far the latest counts.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        # For each hash the last place that ends with such tokens; for each place the one before it with the same hash.
        self._last, self._before = _nowhere(_SMALLEST), array("i")

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """See `Drafter`; the level is how many tokens agree."""
        num_known = len(token_ids)
        if num_known < self._shortest:
            return NO_DRAFT
        self._index(token_ids, min(num_known - 1, len(self._before) + MOST_INDEXED))
        place = self._last[self._hash(token_ids, num_known - 1)]
        best, best_length = -1, self._shortest - 1
        for _ in range(MOST_COMPARED):
            if place < 0 or best_length == self._longest:
                break
            length = self._agreement(token_ids, place)
            if length > best_length:
                best, best_length = place, length
            place = self._before[place]
        if best < 0:
            return NO_DRAFT
        return Draft(self._continuation(token_ids, best + 1, num_tokens), best_length)

    def _continuation(self, token_ids: Sequence[int], start: int, num_tokens: int) -> list[int]:
        """What followed; where that reaches the end, it is taken to go on in circles."""
        found = list(token_ids[start : start + num_tokens])
        while len(found) < num_tokens:
            found += found[: num_tokens - len(found)]
        return found

    def _agreement(self, token_ids: Sequence[int], place: int) -> int:
        """How many tokens up to `place` are the last ones."""
        end, length = len(token_ids) - 1, 0
        most = min(self._longest, place + 1)
        while length < most and token_ids[place - length] == token_ids[end - length]:
            length += 1
        return length

    def _index(self, token_ids: Sequence[int], num_tokens: int) -> None:
        """Take in the places before `num_tokens`, the last of which has nothing after it yet."""
        if len(token_ids) > len(self._last):
            self._last, self._before = _nowhere(4 * len(token_ids)), array("i")
            num_tokens = min(num_tokens, MOST_INDEXED)
        for place in range(len(self._before), num_tokens):
            if place < self._shortest - 1:
                self._before.append(-1)
                continue
            key = self._hash(token_ids, place)
            self._before.append(self._last[key])
            self._last[key] = place

    def _hash(self, token_ids: Sequence[int], place: int) -> int:
        return hash(tuple(token_ids[place - self._shortest + 1 : place + 1])) % len(self._last)


def _nowhere(size: int) -> array[int]:
    return array("i", [-1]) * size
