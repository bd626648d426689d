"""How fast this machine computes just now, for tests and budgets that bound time."""

from __future__ import annotations

import time

SECONDS_ON_A_QUIET_MACHINE = 0.006


def slowness() -> float:
    """How many times slower than on a quiet machine this one computes just now; 1 at least."""
    return max(1.0, min(_seconds(time.thread_time) for _ in range(3)) / SECONDS_ON_A_QUIET_MACHINE)


def pace() -> float:
    """How many times the time of a quiet machine passes here for the same work, others' work on the cores included."""
    return _seconds(time.perf_counter) / SECONDS_ON_A_QUIET_MACHINE


def _seconds(clock) -> float:
    started = clock()
    sum(place * place for place in range(100_000))
    return clock() - started
