"""`WorkBudget`: how much work the grammar of one request may make, and `StepBudget`: how much of it within a step."""

from __future__ import annotations

import time
from collections.abc import Callable

# Processor time that masks of a request may take at once, and in the long run of each token.
SECONDS_AT_ONCE = 0.5
SECONDS_PER_TOKEN = 0.02
# A mask that took longer is followed by others that are made beside the engine's loop.
SLOW_SECONDS = 0.005
# Time that a step spends on masks and on tokens without a choice; what is left over then is made beside the loop.
STEP_SECONDS = 0.1


class WorkBudget:
    """Fills up with each token, and is used up by the work on masks; work is a thread's processor time.

    Samples of one request share one, which holds more for each.

    Args:
        clock: seconds of work of the calling thread.

    Attributes:
        used: seconds of work so far.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self.used = 0.0
        self._most = self._left = SECONDS_AT_ONCE

    @property
    def is_used_up(self) -> bool:
        """Whether the grammar took more work than it may."""
        return self._left < 0

    def add_sample(self) -> None:
        """One sample more shares the budget: room for a mask of it."""
        self._most += SECONDS_PER_TOKEN
        self._left += SECONDS_PER_TOKEN

    def refill(self) -> None:
        """A token has come."""
        self._left = min(self._most, self._left + SECONDS_PER_TOKEN)

    def spend(self, seconds: float) -> None:
        """So much work was done."""
        self.used += seconds
        self._left -= seconds


class StepBudget:
    """Begins when it is made.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + STEP_SECONDS

    @property
    def is_used_up(self) -> bool:
        """Whether the step has spent its time."""
        return self._clock() >= self._end
