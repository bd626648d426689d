"""`WorkBudget`: how long one request's grammar may keep the engine's loop."""

from __future__ import annotations

import time
from collections.abc import Callable

# Processor time that masks may take at once, and in the long run of each token.
SECONDS_AT_ONCE = 0.5
SECONDS_PER_TOKEN = 0.02


class WorkBudget:
    """Fills up with each token, and is used up by the work on masks; work is the thread's processor time.

    Args:
        clock: seconds of work so far.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left = SECONDS_AT_ONCE
        self._begun = 0.0

    @property
    def is_used_up(self) -> bool:
        """Whether the grammar took more work than it may."""
        return self._left < 0

    def refill(self) -> None:
        """A token has come."""
        self._left = min(SECONDS_AT_ONCE, self._left + SECONDS_PER_TOKEN)

    def __enter__(self) -> None:
        self._begun = self._clock()

    def __exit__(self, *exception: object) -> None:
        self._left -= self._clock() - self._begun
