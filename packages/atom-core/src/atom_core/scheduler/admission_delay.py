"""`AdmissionDelay`: holds new prompts back for a while, so that several begin in one step."""

from __future__ import annotations

from collections.abc import Callable

from atom_core.scheduler.request import Request


class AdmissionDelay:
    """While others run, the first in the queue waits `factor` times as long as the last step with a new prompt took."""

    def __init__(self, factor: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._clock = clock
        self._last_step_time = 0.0
        self._last_step_admitted = False
        self._last_duration = 0.0

    def is_over(self, head: Request | None, is_idle: bool) -> bool:
        """Asked once a step: whether `head` may be let in; always where the engine is idle."""
        now = self._clock()
        if self._last_step_admitted:
            self._last_duration = now - self._last_step_time
        self._last_step_time, self._last_step_admitted = now, False
        return is_idle or head is None or now - head.arrival > self._factor * self._last_duration

    def admitted(self) -> None:
        """This step let a request in."""
        self._last_step_admitted = True
