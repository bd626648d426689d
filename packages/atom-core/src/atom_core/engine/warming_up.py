"""`WarmingUp`: when an engine does its warm-up, before its first step or beside the steps of requests."""

from __future__ import annotations

import time

from atom_core.engine.between_steps import BetweenSteps
from atom_core.executor.protocol import Executor


class WarmingUp:
    """The warm-up of an engine's workers, as `EngineArgs.warmup` says.

    Args:
        executor: prepares the workers slice by slice.
        mode: "full", "background" or "none".
    """

    def __init__(self, executor: Executor, mode: str) -> None:
        self._executor, self._mode = executor, mode
        self._between_steps: BetweenSteps | None = None

    def begin(self) -> dict[str, float]:
        """At the start and after a sleep: do what is to be done before the first step; its seconds, by name.

        The workers end with a warm-up that fails.
        """
        if self._mode == "background":
            self._between_steps = BetweenSteps(self._executor.prepare)
        if self._mode != "full":
            return {}
        begun = time.perf_counter()
        try:
            while self._executor.prepare():
                pass
        except BaseException:
            self._executor.shutdown()
            raise
        return {"warm up": time.perf_counter() - begun}

    @property
    def is_under_way(self) -> bool:
        """Whether steps and idle time are shared with it."""
        return self._between_steps is not None

    def after_step(self) -> None:
        """Do a slice if requests leave it the time."""
        if self._between_steps is not None and not self._between_steps.use():
            self._between_steps = None

    def while_idle(self) -> bool:
        """Do a slice; False where nothing is left."""
        if self._between_steps is not None and not self._executor.prepare():
            self._between_steps = None
        return self.is_under_way
