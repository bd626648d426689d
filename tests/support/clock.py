"""`Clock`: seconds that pass when told to."""

from __future__ import annotations


class Clock:
    """What `time.monotonic` is to code that asks for the time; `now` is set by the test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
