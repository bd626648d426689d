"""Two hundred clients at a time get the answers that each gets alone, for as long as they ask."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
import pytest

from health_probe import HealthProbe
from machine_speed import slowness
from mixed_streams import KINDS, MixedStreams
from serving_processes import engine_pid, sizes_mb, wait_until_idle

# What `/health` may take for 99 of 100, in seconds of the server's own, on a quiet machine.
MOST_SECONDS = 0.05
# A process may grow by this part of its size after the first minute, when free lists and caches have their sizes.
MOST_GROWTH = 0.05

T = TypeVar("T")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.timing
@pytest.mark.parametrize(
    "seconds", [10, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.by_hand])], ids="{}s".format
)
def test_no_token_changes_memory_stays_and_health_is_told_while_two_hundred_clients_ask(serve_process, seconds):
    with serve_process("--log-level", "warning", "--timeout-keep-alive", "3600") as served:
        pids = [served.process.pid, engine_pid(served)]
        clients = MixedStreams(served.url, 200, seed=1)
        clients.run(0)  # each kind once: what grammars need is opened with the first of them
        descriptors = wait_until_steady(lambda: num_descriptors(pids))
        probe = HealthProbe(int(served.url.rpartition(":")[2]), served.process.pid)
        sizes = []
        watching = threading.Thread(target=lambda: (time.sleep(min(60, seconds / 2)), sizes.append(sizes_mb(pids))))
        watching.start()
        clients.run(seconds)
        watching.join()
        sizes.append(sizes_mb(pids))
        probed, times_slower = probe.stop(), slowness()
        wait_until_idle(served.url)
        assert wait_until_steady(lambda: used_share(served.url)) == 0
        assert wait_until_steady(lambda: num_descriptors(pids)) == descriptors
        print(f"\n{dict(clients.answered)}, /health {probed.p99_s * 1000:.0f} ms for 99 of {probed.num_asked}, {sizes}")

        assert not clients.problems, f"{len(clients.problems)}: " + "\n".join(clients.problems[:5])
        assert set(clients.answered) == {*KINDS, "left early"}
        assert "Traceback" not in served.text, served.text[-5000:]
    assert probed.p99_s < MOST_SECONDS * times_slower
    if seconds >= 120:
        assert all(sizes[1][pid] < sizes[0][pid] * (1 + MOST_GROWTH) for pid in pids)


def num_descriptors(pids: list[int]) -> list[int]:
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


def used_share(url: str) -> float:
    """The share of the cache's blocks that requests hold, as the server tells it."""
    lines = httpx.get(url + "/metrics", timeout=60).text.splitlines()
    [share] = [line.split()[-1] for line in lines if line.startswith("atom:kv_cache_usage_perc{")]
    return float(share)


def wait_until_steady(read: Callable[[], T], seconds: float = 60) -> T:
    """What is read once it has been the same for a second: connections that were closed are gone then."""
    deadline = time.monotonic() + seconds
    while True:
        before = read()
        time.sleep(1)
        if read() == before:
            return before
        assert time.monotonic() < deadline, "it changes for ever"
