"""The server notes how late its event loop is."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Histogram

from atom_server.observe.loop_lag import watch_loop


async def test_what_holds_the_loop_up_is_noted_once_and_an_idle_loop_is_hardly_late():
    registry = CollectorRegistry()
    lag = Histogram("lag", "Seconds.", buckets=(0.5,), registry=registry)

    def late() -> float:
        looks, in_time = registry.get_sample_value("lag_count"), registry.get_sample_value("lag_bucket", {"le": "0.5"})
        return (looks or 0) - (in_time or 0)

    watching = asyncio.ensure_future(watch_loop(lag))
    await asyncio.sleep(0.12)
    assert (registry.get_sample_value("lag_count") or 0) >= 1
    assert late() == 0
    time.sleep(0.6)
    await asyncio.sleep(0.02)
    watching.cancel()
    assert late() == 1
