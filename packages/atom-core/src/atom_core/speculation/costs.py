"""`StepCosts`: what steps of decodes cost, by tokens and by drafts made; measured, on whatever machine this is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import fmean

# Stands for the number of drafts where the model that makes them did not follow a step either.
UNFOLLOWED = -1
# What a token more is taken to cost, as part of the step, until steps of more tokens were measured, and tokens beyond
# which more cost nothing: where weights are read from memory, all are as good as free. It is tried, so it must not be
# too high.
_FIRST_GUESS, _MOST_GUESSED = 0.01, 8
# The same of one more draft for each request, which takes a pass of a small model.
_FIRST_GUESS_OF_DRAFT = 0.05
# The part of a size from which on another one is about as large.
_NEAR = 0.75
# Steps of a size that are measured before it is believed, and for how many steps it then is if none comes any more.
_NUM_TRIED, _BELIEVED_FOR = 3, 512
# The last ones of a size that count, and how many steps before the last of them an older one still does.
_NUM_KEPT, _KEPT_FOR = 16, 64


class _Measured:
    """Steps of one size.

    Attributes:
        last: after how many of all steps the last of them came.
        count: how many count.
        seconds: what one takes.
    """

    def __init__(self) -> None:
        self.last = self.count = 0
        self.seconds = 0.0
        self._steps: deque[tuple[int, float]] = deque(maxlen=_NUM_KEPT)

    def take(self, step: int, seconds: float) -> None:
        """The `step`-th of all steps took so long.

        The half of few steps that took longest does not count, and a quarter of many: the first of a size pay for what
        later ones find done, and other programs delay any, with drafts or without. What happens to more steps than that
        is a part of what they cost.
        """
        self._steps.append((step, seconds))
        late = [taken for at, taken in self._steps if at > step - _KEPT_FOR]
        counted = late if len(late) >= _NUM_TRIED else [taken for _, taken in self._steps]
        self.last, self.count = step, len(self._steps)
        num_counted = 3 * _NUM_KEPT // 4 if len(counted) == _NUM_KEPT else max(len(counted) // 2, 1)
        self.seconds = fmean(sorted(counted)[:num_counted])


class StepCosts:
    """Mean seconds of a step by its size. Sizes up to 8 are told apart, larger ones in steps of an eighth or less.

    Steps behind which drafts are made are measured by themselves, for each number of drafts that a request gets there.
    """

    def __init__(self) -> None:
        # Measurements by number of drafts and by size, and those that are believed: worked out once for each step.
        self._measured: dict[int, dict[int, _Measured]] = {}
        self._believed: dict[int, dict[int, float]] = {}
        self._num_steps = 0

    def take(self, num_tokens: int, seconds: float, num_next_drafts: int = 0) -> None:
        """A step of so many tokens took so long; what takes no time is a clock that stands."""
        if seconds <= 0:
            return
        self._num_steps += 1
        size, measured = _size_of(num_tokens), self._measured.setdefault(num_next_drafts, {})
        found = measured.get(size)
        if found is None or self._num_steps - found.last > _BELIEVED_FOR:
            found = measured[size] = _Measured()
        found.take(self._num_steps, seconds)
        self._believed.clear()

    def are_known(self, num_tokens: int) -> bool:
        """Whether steps of about so many tokens were measured; what drafts save is not known before."""
        size = _size_of(num_tokens)
        return any(_NEAR * size <= known <= size for known in self._known(0))

    def last_measured(self, num_tokens: int, num_next_drafts: int) -> int:
        """After how many steps of any size such a step was measured last; 0 for never."""
        found = self._measured.get(num_next_drafts, {}).get(_size_of(num_tokens))
        return 0 if found is None else found.last

    def most_to_try(self, num_tokens: int) -> int:
        """Tokens of the largest step that may be tried where steps of `num_tokens` run.

        It is half as large again as the largest one that was measured: where tokens cost time, a step of many times the
        size would lose more than what it tells is worth.
        """
        largest = max([num_tokens, *self._known(0)])
        return largest + max(_MOST_GUESSED, largest // 2)

    def seconds(self, num_tokens: int, num_next_drafts: int = 0) -> float:
        """What a step of so many tokens takes; 1.0 before anything was measured."""
        known, size = self._known(num_next_drafts), _size_of(num_tokens)
        sizes = list(known)
        # What many tokens take says nothing of few, of which drafts are to be tried.
        if num_next_drafts and (not known or size < _NEAR * sizes[0]):
            base = self.seconds(num_tokens, num_next_drafts - 1)
            return base + _FIRST_GUESS_OF_DRAFT * self.seconds(num_tokens)
        if not known:
            return 1.0
        if size in known:
            return known[size]
        place = bisect_left(sizes, size)
        if place == 0:
            return known[sizes[0]]
        lower = sizes[place - 1]
        if place == len(sizes):
            guess = _FIRST_GUESS * min(size - lower, _MOST_GUESSED)
            return known[lower] * (1 + guess) + _slope(known) * (size - lower)
        upper = sizes[place]
        return known[lower] + (known[upper] - known[lower]) * (size - lower) / (upper - lower)

    def seconds_unfollowed(self, num_tokens: int) -> float:
        """What a step of so many tokens takes that no model follows; until that is known, one without drafts."""
        size, known = _size_of(num_tokens), self._known(UNFOLLOWED)
        near = [seconds for other, seconds in known.items() if _NEAR * size <= other <= size]
        return near[-1] if near else self.seconds(num_tokens)

    def _known(self, num_next_drafts: int) -> dict[int, float]:
        """Seconds of the sizes that were measured, in rising order."""
        if (known := self._believed.get(num_next_drafts)) is None:
            measured = sorted(self._measured.get(num_next_drafts, {}).items())
            known = {size: found.seconds for size, found in measured if self._is_believed(found)}
            self._believed[num_next_drafts] = known
        return known

    def _is_believed(self, found: _Measured) -> bool:
        return found.count >= _NUM_TRIED and self._num_steps - found.last <= _BELIEVED_FOR


def _slope(known: dict[int, float]) -> float:
    """Seconds of a token more, beyond the largest size that is known."""
    if len(known) < 2:
        return 0.0
    lower, upper = list(known)[-2:]
    return max(known[upper] - known[lower], 0.0) / (upper - lower)


def _size_of(num_tokens: int) -> int:
    """The largest number that falls together with this one."""
    step = 1 << max(num_tokens.bit_length() - 4, 0)
    return -(-num_tokens // step) * step
