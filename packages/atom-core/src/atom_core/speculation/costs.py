"""`StepCosts`: what steps of decodes cost, by the number of their tokens; measured, on whatever machine this is."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

# What a token more is taken to cost, as part of the step, until steps of more tokens were measured: where weights are
# read from memory, as good as nothing. It is tried, so it must not be too high.
_FIRST_GUESS = 0.01
# The part of a size from which on another one is about as large.
_NEAR = 0.75
# Steps of a size that are measured before it is believed, and for how many steps it then is if none comes any more.
_NUM_TRIED, _BELIEVED_FOR = 3, 512
# The part that a new measurement has in the mean, and how far beyond the mean it counts: other programs delay steps.
_WEIGHT, _MOST = 0.2, 2.0


@dataclass(slots=True)
class _Measured:
    seconds: float
    count: int
    last: int


class StepCosts:
    """Mean seconds of a step by its size. Sizes up to 8 are told apart, larger ones in steps of an eighth or less."""

    def __init__(self) -> None:
        self._measured: dict[int, _Measured] = {}
        self._num_steps = 0

    def take(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long; what takes no time is a clock that stands."""
        if seconds <= 0:
            return
        self._num_steps += 1
        size = _size_of(num_tokens)
        found = self._measured.get(size)
        if found is None or self._num_steps - found.last > _BELIEVED_FOR:
            self._measured[size] = _Measured(seconds, 1, self._num_steps)
            return
        # The first ones of a size may pay for what later ones find done.
        if found.count < _NUM_TRIED:
            found.seconds = min(found.seconds, seconds)
        else:
            found.seconds += _WEIGHT * (min(seconds, _MOST * found.seconds) - found.seconds)
        found.count += 1
        found.last = self._num_steps

    def are_known(self, num_tokens: int) -> bool:
        """Whether steps of about so many tokens were measured; what drafts save is not known before."""
        size = _size_of(num_tokens)
        return any(_NEAR * size <= known <= size for known in self._known())

    def seconds(self, num_tokens: int) -> float:
        """What a step of so many tokens takes; 1.0 before anything was measured."""
        known = self._known()
        if not known:
            return 1.0
        size = _size_of(num_tokens)
        place = bisect_left(known, size)
        if place < len(known) and known[place] == size:
            return self._measured[size].seconds
        if place == 0:
            return self._measured[known[0]].seconds
        lower = known[place - 1]
        base = self._measured[lower].seconds
        if place == len(known):
            return base * (1 + _FIRST_GUESS * (size - lower)) + self._slope(known) * (size - lower)
        upper = known[place]
        return base + (self._measured[upper].seconds - base) * (size - lower) / (upper - lower)

    def _known(self) -> list[int]:
        return sorted(size for size, found in self._measured.items() if self._is_believed(found))

    def _slope(self, known: list[int]) -> float:
        """Seconds of a token more, beyond the largest size that is known."""
        if len(known) < 2:
            return 0.0
        lower, upper = known[-2:]
        return max(self._measured[upper].seconds - self._measured[lower].seconds, 0.0) / (upper - lower)

    def _is_believed(self, found: _Measured) -> bool:
        return found.count >= _NUM_TRIED and self._num_steps - found.last <= _BELIEVED_FOR


def _size_of(num_tokens: int) -> int:
    """The largest number that falls together with this one."""
    step = 1 << max(num_tokens.bit_length() - 4, 0)
    return -(-num_tokens // step) * step
