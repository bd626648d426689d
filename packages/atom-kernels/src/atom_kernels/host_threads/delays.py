"""How long the threads of this process wait for a core, as Linux counts it."""

from __future__ import annotations

import os
import time

_TASKS = "/proc/self/task"


class ThreadDelays:
    """Reads ``/proc/self/task/*/schedstat``: nanoseconds on a core, and nanoseconds ready to run without one."""

    def __init__(self) -> None:
        self._last = _read()
        self._asked_ns = time.monotonic_ns()

    def share(self) -> float | None:
        """The share of time without a core, of the time since the last call in which threads wanted one.

        None where they wanted one for less than half of that time, or where the system does not count it.
        """
        last, self._last = self._last, _read()
        asked_ns, self._asked_ns = self._asked_ns, time.monotonic_ns()
        ran = waited = 0
        for thread, (run, delay) in self._last.items():
            run_before, delay_before = last.get(thread, (0, 0))
            ran += run - run_before
            waited += delay - delay_before
        wanted = ran + waited
        return waited / wanted if wanted > (self._asked_ns - asked_ns) / 2 else None


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
