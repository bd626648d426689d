"""How long the threads of this process wait for a core, as Linux counts it."""

from __future__ import annotations

import os

_TASKS = "/proc/self/task"
# Scheduling is counted in slices of milliseconds: a share of less than this is chance.
_ENOUGH_NS = 100_000_000


class ThreadDelays:
    """Reads ``/proc/self/task/*/schedstat``: nanoseconds on a core, and nanoseconds ready to run without one."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was until now."""
        self._last = _read()

    def share(self) -> float | None:
        """The share of time without a core, of the time in which threads wanted one, and begin anew.

        None, and it goes on counting, until they wanted one for 0.1 s together: pauses do not matter. None for good
        where the system does not count it.
        """
        read = _read()
        ran = waited = 0
        for thread, (run, delay) in read.items():
            run_before, delay_before = self._last.get(thread, (0, 0))
            ran += run - run_before
            waited += delay - delay_before
        if ran + waited < _ENOUGH_NS:
            return None
        self._last = read
        return waited / (ran + waited)


def _read() -> dict[str, tuple[int, int]]:
    times = {}
    try:
        threads = os.listdir(_TASKS)
    except OSError:
        return {}
    for thread in threads:
        try:
            with open(f"{_TASKS}/{thread}/schedstat", "rb") as file:
                run, delay, _ = file.read().split()
        except (OSError, ValueError):  # the thread has ended, or this system keeps no such counts
            continue
        times[thread] = int(run), int(delay)
    return times
