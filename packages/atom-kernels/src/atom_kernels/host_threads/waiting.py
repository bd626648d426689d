"""Lets threads spin for each other while cores are free, and sleep while other programs want the cores."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch

from atom_kernels import settings
from atom_kernels.host_threads import cores
from atom_kernels.host_threads.delays import ThreadDelays
from atom_kernels.host_threads.openmp_spin import openmp_spin

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
# A step is held up while any of its threads waits for a core. Where nothing else runs, 0.15 of two threads that spin on
# two cores wait on average, since the process has other threads, and 0.6 beside one busy program.
MOST_WAITING = 0.4
# For how long threads sleep before they try to spin again; twice as long each time that this was too soon.
SHORTEST_SLEEP, LONGEST_SLEEP = 2.0, 32.0


class Spin(Protocol):
    """What a `WaitPolicy` needs of an `OpenmpSpin`."""

    @property
    def is_short(self) -> bool: ...
    def shorten(self) -> None: ...
    def lengthen(self) -> None: ...


class Delays(Protocol):
    """What a `WaitPolicy` needs of `ThreadDelays`."""

    def begin(self) -> None: ...
    def share(self) -> float | None: ...


class WaitPolicy:
    """Looks, between steps, at how long spinning threads waited for cores; where that is long, lets them sleep a while.

    Threads that sleep are not looked at: being woken takes so long on virtual machines that a quiet one looks busy.
    So they try to spin again, after a time that does not depend on how much is computed in it.
    Results do not change: the number of threads, and with it who computes what, stays as it is.

    Args:
        spin: what is made short or long.
        delays: how much of the time threads waited for a core.
        clock: seconds.
    """

    def __init__(self, spin: Spin, delays: Delays, clock: Callable[[], float] = time.monotonic) -> None:
        self._spin = spin
        self._delays = delays
        self._clock = clock
        self._next_look = clock() + LOOK_SECONDS
        # One busy look after a calm one changes nothing: a virtual machine may stand still for a moment.
        self._was_calm = True
        self._sleeps_until, self._next_sleep = 0.0, SHORTEST_SLEEP

    @property
    def spins_briefly(self) -> bool:
        """Whether threads sleep almost at once, since the machine was found busy."""
        return self._spin.is_short

    def look(self, num_threads: int) -> None:
        """Called once a step by the thread that computes, with `num_threads`; looks at most every `LOOK_SECONDS`."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if not self._spin.is_short:
            self._judge(now, num_threads)
        elif now >= self._sleeps_until:
            self._try_to_spin()

    def _judge(self, now: float, num_threads: int) -> None:
        share = self._delays.share()
        if share is None:
            return
        is_calm = share * num_threads <= MOST_WAITING
        if is_calm:
            self._next_sleep = SHORTEST_SLEEP
        elif not self._was_calm:
            self._spin.shorten()
            self._sleeps_until = now + self._next_sleep
            self._next_sleep = min(2 * self._next_sleep, LONGEST_SLEEP)
        self._was_calm = is_calm

    def _try_to_spin(self) -> None:
        self._spin.lengthen()
        self._delays.begin()
        self._was_calm = False  # so that the first look decides


@cache
def wait_policy() -> WaitPolicy | None:
    """The `WaitPolicy` of this process's OpenMP threads.

    None where the OpenMP runtime has other rules, or where the environment says how threads wait
    (``OMP_WAIT_POLICY``, ``GOMP_SPINCOUNT``).
    """
    spin = openmp_spin()
    if spin is None or settings.openmp_waits_are_set():
        return None
    return WaitPolicy(spin, ThreadDelays())


def keep_to_quota() -> None:
    """Compute with no more threads than the CPU quota has cores, which torch does not look at."""
    if cores.cgroup_quota() is not None and (count := cores.usable_cores()) < torch.get_num_threads():
        logger.info("%d threads: the CPU quota of this process's control group", count)
        torch.set_num_threads(count)


def adapt_waiting() -> None:
    """Called once a step on the CPU, by the thread that computes it."""
    if (num_threads := torch.get_num_threads()) > 1 and (policy := wait_policy()) is not None:
        policy.look(num_threads)
