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
# Two spinning threads on two cores wait for a third of their time beside one busy program, and under 2 % alone.
BUSY_SHARE = 0.1
# Looks in a row that must be calm before threads spin again; twice as many each time that this was too soon.
FEWEST_CALM_LOOKS, MOST_CALM_LOOKS = 20, 640


class Spin(Protocol):
    """What a `WaitPolicy` needs of an `OpenmpSpin`."""

    @property
    def is_short(self) -> bool: ...
    def shorten(self) -> None: ...
    def lengthen(self) -> None: ...


class WaitPolicy:
    """Looks, between steps, at how long this process waited for cores, and shortens or lengthens the spinning.

    Results do not change: the number of threads, and with it who computes what, stays as it is.

    Args:
        spin: what is made short or long.
        share: gives the part of the time since its last call in which threads waited for a core (`ThreadDelays.share`).
        clock: seconds.
    """

    def __init__(
        self, spin: Spin, share: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spin = spin
        self._share = share
        self._clock = clock
        self._next_look = clock() + LOOK_SECONDS
        self._calm_looks = self._calm_looks_needed = FEWEST_CALM_LOOKS
        self._one_is_enough = True  # a first busy look is believed

    @property
    def spins_briefly(self) -> bool:
        """Whether threads sleep almost at once, since the machine was found busy."""
        return self._spin.is_short

    def look(self) -> None:
        """Called once a step by the thread that computes; looks at most every `LOOK_SECONDS`."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        share = self._share()
        if share is None:
            return
        if share > BUSY_SHARE:
            # A virtual machine that stood still for a moment looks busy once.
            if self._one_is_enough or self._calm_looks < FEWEST_CALM_LOOKS:
                self._be_busy()
            self._one_is_enough = True
        else:
            self._one_is_enough = False
            self._calm_looks += 1
            if self._spin.is_short and self._calm_looks >= self._calm_looks_needed:
                self._spin.lengthen()
                self._calm_looks = 0

    def _be_busy(self) -> None:
        if not self._spin.is_short:
            too_soon = self._calm_looks < self._calm_looks_needed
            doubled = min(2 * self._calm_looks_needed, MOST_CALM_LOOKS)
            self._calm_looks_needed = doubled if too_soon else FEWEST_CALM_LOOKS
            self._spin.shorten()
        self._calm_looks = 0


@cache
def wait_policy() -> WaitPolicy | None:
    """The `WaitPolicy` of this process's OpenMP threads.

    None where the OpenMP runtime has other rules, or where the environment says how threads wait
    (``OMP_WAIT_POLICY``, ``GOMP_SPINCOUNT``).
    """
    spin = openmp_spin()
    if spin is None or settings.openmp_waits_are_set():
        return None
    return WaitPolicy(spin, ThreadDelays().share)


def keep_to_quota() -> None:
    """Compute with no more threads than the CPU quota has cores, which torch does not look at."""
    if cores.cgroup_quota() is not None and (count := cores.usable_cores()) < torch.get_num_threads():
        logger.info("%d threads: the CPU quota of this process's control group", count)
        torch.set_num_threads(count)


def adapt_waiting() -> None:
    """Called once a step on the CPU, by the thread that computes it."""
    if torch.get_num_threads() > 1 and (policy := wait_policy()) is not None:
        policy.look()
