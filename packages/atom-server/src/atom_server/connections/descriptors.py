"""File descriptors: each connection takes one, and a process that has none left can accept no client."""

from __future__ import annotations

import asyncio
import logging
import os
import resource

from atom_core.seldom import SeldomWarning

logger = logging.getLogger(__name__)

# For sockets of the engine, log files, modules that are imported late.
_SPARE = 16
_CHECK_INTERVAL_S = 1.0


def connections_that_fit(wanted: int) -> int:
    """How many connections this process has descriptors for, up to `wanted`. Raises the process's limit if it may."""
    num_open = len(os.listdir("/dev/fd"))
    limit = _raise_limit(wanted + num_open + _SPARE)
    fits = max(1, min(wanted, limit - num_open - _SPARE))
    if fits < wanted:
        logger.warning(
            "takes at most %d connections instead of %d: the process may open %d files (ulimit -n)", fits, wanted, limit
        )
    return fits


async def watch_descriptors() -> None:
    """Log while no descriptor is left. The event loop drops new connections then, and says nothing."""
    warn = SeldomWarning(logger)
    while True:
        try:
            os.close(os.dup(2))
        except OSError as error:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            warn(f"new connections are dropped: {error.strerror} (ulimit -n is {limit}); lower --max-connections")
        await asyncio.sleep(_CHECK_INTERVAL_S)


def _raise_limit(wanted: int) -> int:
    """Raise the soft limit of open files towards `wanted`, as far as the hard limit allows; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError) as error:  # some systems allow less than they say
            logger.debug("cannot raise the limit of open files to %d: %s", target, error)
    return target if soft == resource.RLIM_INFINITY else soft
