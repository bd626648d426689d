"""`Trials`: numbers of drafts that are tried though they do not seem best, so that what is known of them stays true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The part of the time that trials may cost.
_PART = 0.01
# Steps of a trial: the first and the last are between two ways to run, and those between them are measured.
_NUM_STEPS = 6
# Drafts that promise less than this part of the best are not tried before what was measured of them is forgotten.
_WITHIN_REACH = 0.8


class Prospect(NamedTuple):
    """What steps with some number of drafts promise.

    Attributes:
        tokens: how many a step is expected to give.
        seconds: how long it takes.
        last_measured: the step at which that was measured, as `StepCosts` counts them.
    """

    tokens: float
    seconds: float
    last_measured: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Trials:
    """Says when to run some steps with another number of drafts than the one that promises most.

    Only what runs is measured. A number that was measured too slow, in a bad moment or with shorter requests, would
    not run again. The number that was measured longest ago is tried as soon as a hundredth of the time that passed
    pays for what the trial is expected to lose. Steps without drafts are always tried, so that drafts lose no more
    against them than that.
    """

    def __init__(self) -> None:
        self._saved = 0.0
        self._number, self._steps_left = 0, 0

    def save(self, seconds: float) -> None:
        """So much time has passed."""
        self._saved += _PART * seconds

    def number(self, prospects: Sequence[Prospect], best: int) -> int:
        """Drafts for each request behind this step.

        Args:
            prospects: what no draft promises, then one, then two, and so on.
            best: the number that promises most.
        """
        if not self._steps_left:
            self._perhaps_begin(prospects, best)
        if not self._steps_left:
            return best
        self._steps_left -= 1
        return min(self._number, len(prospects) - 1)

    def _perhaps_begin(self, prospects: Sequence[Prospect], best: int) -> None:
        rate = prospects[best].rate
        others = [
            (found.last_measured, number)
            for number, found in enumerate(prospects)
            if number != best and (number == 0 or found.rate >= _WITHIN_REACH * rate)
        ]
        if not others:
            self._saved = 0.0
            return
        _, number = min(others)
        loss = _NUM_STEPS * (prospects[number].seconds - prospects[number].tokens / rate)
        if self._saved > max(loss, 0.0):
            # Nothing is left over: a step may have taken long for once, as one does in which graphs are captured.
            self._saved = 0.0
            self._number, self._steps_left = number, _NUM_STEPS
