"""Runs probes that compute where their OpenMP threads end with them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def run_apart(probe: Callable[[], Result]) -> Result:
    """The result of `probe`, run in a thread of its own that has ended on return.

    OpenMP gives every thread that computes a pool of helpers. One left behind on the caller's thread makes the pool of
    the thread that serves later sleep instead of spin between operators: half as many tokens a second.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(probe).result()
