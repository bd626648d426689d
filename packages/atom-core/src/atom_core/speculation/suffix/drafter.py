"""`SuffixDrafter`: what most often followed the last tokens, in the request and in earlier outputs.

After SuffixDecoding: Oliaro et al. 2024, https://arxiv.org/abs/2411.04975. That length of agreement counts
whose drafts are likely to be right in the largest number, and a longer agreement has more drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from atom_core.speculation.config import SuffixConfig
from atom_core.speculation.drafter import NO_DRAFT, Draft
from atom_core.speculation.suffix.index import END, Place, SuffixIndex
from atom_core.speculation.suffix.past_outputs import PastOutputs

# Tokens of a request that become places in one call. A long prompt is caught up with over some steps.
MOST_INDEXED = 4096
# Tokens of a request that it looks back to.
MOST_LOOKED_BACK = 1 << 17


class _Found(NamedTuple):
    """Drafts, how many of them should be right, and how many tokens agree before them."""

    token_ids: list[int]
    score: float
    length: int


_NOTHING = _Found([], 0.0, 0)


class SuffixDrafter:
    """Looks into the request itself and into what was generated under its salt.

    Args:
        config: bounds of what is compared and guessed.
        past: earlier outputs; None looks into the request alone.
        salt: the request's.
    """

    def __init__(self, config: SuffixConfig, past: PastOutputs | None = None, salt: str = "") -> None:
        self._config, self._past, self._salt = config, past, salt
        self._own, self._num_taken = SuffixIndex(MOST_LOOKED_BACK), 0

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        """See `Drafter`; the level tells where it was found, and grows with the length of the agreement."""
        self._own.extend(token_ids[self._num_taken :])
        self._num_taken = len(token_ids)
        self._own.catch_up(MOST_INDEXED)
        end = token_ids[-self._config.max_tree_depth :]
        found = self._look(self._own, end, num_tokens)
        past = None if self._past is None else self._past.of(self._salt)
        others = _NOTHING if past is None else self._look(past, end, num_tokens)
        if others.score > found.score:
            return Draft(others.token_ids, 2 * others.length.bit_length() + 1)
        return Draft(found.token_ids, 2 * found.length.bit_length()) if found.token_ids else NO_DRAFT

    def _look(self, index: SuffixIndex, end: Sequence[int], num_tokens: int) -> _Found:
        places = index.places(end, self._config.max_tree_depth)
        best = _NOTHING
        for length in _lengths(places):
            starts = [place.start for place in places if place.length >= length]
            most = min(num_tokens, self._most_drafts(length))
            found = _Found(*most_frequent(index.tokens, starts, most, self._config.min_token_prob), length)
            if found.score > best.score:
                best = found
        return best

    def _most_drafts(self, length: int) -> int:
        """How many drafts an agreement of some tokens gives: `max_spec_factor` for each token.

        Agreement and drafts together are no longer than `max_tree_depth`, so of a long agreement only a part counts:
        as many tokens as give most drafts.
        """
        factor = self._config.max_spec_factor
        return int(factor * min(length, self._config.max_tree_depth / (1 + factor)))


def most_frequent(tokens: array[int], starts: Sequence[int], most: int, least_part: float) -> tuple[list[int], float]:
    """The most frequent way on from `starts`, token by token, and the sum of the parts of them that went each token.

    Args:
        starts: the latest first; of equally frequent ways that of the latest is taken.
        most: tokens at most.
        least_part: the way ends where fewer of all `starts` than this part went it.
    """
    way: list[int] = []
    score, going = 0.0, starts
    while len(way) < most:
        num_made = len(way)
        # A text that begins here goes on behind its end as the way does.
        coming = [
            tokens[start + num_made] if start + num_made < len(tokens) else way[start + num_made - len(tokens)]
            for start in going
        ]
        token, count = coming[0], coming.count(coming[0])
        if count < len(coming):
            token = max(coming, key=coming.count)
            count = coming.count(token)
            going = [start for start, other in zip(going, coming, strict=True) if other == token]
        part = count / len(starts)
        if token == END or part < least_part:
            break
        way.append(token)
        score += part
    return way, score


def _lengths(places: Sequence[Place]) -> list[int]:
    """The longest agreement, one in the middle and the shortest; each once, and falling."""
    lengths = sorted({place.length for place in places}, reverse=True)
    return sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]}, reverse=True) if lengths else []
