"""How fast this machine computes just now, for tests that bound milliseconds."""

from __future__ import annotations

import time

SECONDS_ON_A_QUIET_MACHINE = 0.006


def slowness() -> float:
    """How many times slower than on a quiet machine this one computes just now; 1 at least."""
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        sum(place * place for place in range(100_000))
        seconds.append(time.thread_time() - started)
    return max(1.0, min(seconds) / SECONDS_ON_A_QUIET_MACHINE)
