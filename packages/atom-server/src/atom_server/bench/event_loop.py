"""Runs clients on the quickest event loop that is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Found = TypeVar("Found")


def run(work: Coroutine[Any, Any, Found]) -> Found:
    """What `work` returns."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
