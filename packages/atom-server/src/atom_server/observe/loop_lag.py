"""How late the event loop comes to what it should do: what everybody waits for, whatever they asked."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Histogram

# Twenty looks a second are some hundredths of a percent of a processor.
_INTERVAL_S = 0.05


async def watch_loop(lag: Histogram) -> None:
    """Note how late this task is woken, again and again."""
    while True:
        due = time.perf_counter() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        lag.observe(max(0.0, time.perf_counter() - due))
