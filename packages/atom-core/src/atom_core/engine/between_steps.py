"""`BetweenSteps`: how much of an engine's time its warm-up may take while requests run."""

from __future__ import annotations

import time
from collections.abc import Callable

# Slices of the warm-up take one of this many parts of the time, and steps of requests the others.
PARTS = 3
# A slice comes after this many seconds of steps at least: streams get a few tokens between two of them.
LEAST_SECONDS = 0.03


class BetweenSteps:
    """Does slices between steps, each of which lets steps run for longer than it took.

    Args:
        do_next: does a slice; False where nothing is left.
    """

    def __init__(self, do_next: Callable[[], bool]) -> None:
        self._do_next = do_next
        self._next_at = time.monotonic()

    def use(self) -> bool:
        """Do a slice if it is time for one; False where nothing is left."""
        begun = time.monotonic()
        if begun < self._next_at:
            return True
        is_left = self._do_next()
        ended = time.monotonic()
        self._next_at = ended + max(LEAST_SECONDS, (PARTS - 1) * (ended - begun))
        return is_left
