"""`detect_platform`: this machine, or the platform that stands in its place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from atom_kernels.platform.platform import Platform, platform_from_facts
from atom_kernels.platform.probing import gather_facts

# The platforms that `use_platform` put in the place of this machine; the last one is in force.
_in_use: list[Platform] = []


def detect_platform() -> Platform:
    """This machine, probed once per process; inside `use_platform`, that platform."""
    return _in_use[-1] if _in_use else _probe_once()


@contextlib.contextmanager
def use_platform(platform: Platform) -> Iterator[Platform]:
    """Every thread's `detect_platform` answers with `platform` inside: to see or test what another machine would do."""
    _in_use.append(platform)
    try:
        yield platform
    finally:
        _in_use.pop()


@functools.cache
def _probe_once() -> Platform:
    return platform_from_facts(gather_facts())
