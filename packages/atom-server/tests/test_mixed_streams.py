"""Two hundred clients at a time get the answers that each gets alone, for as long as they ask."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from health_probe import HealthProbe
from machine_speed import slowness
from mixed_streams import KINDS, MixedStreams
from serving_processes import engine_pid, sizes_mb, wait_until_idle

# What `/health` may take for 99 of 100, in seconds of the server's own, on a quiet machine.
MOST_SECONDS = 0.05
# Free lists and caches have their sizes after the first minute.
MOST_GROWTH_MB = 24

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.timing
@pytest.mark.parametrize(
    "seconds", [10, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.by_hand])], ids="{}s".format
)
def test_no_token_changes_memory_stays_and_health_is_told_while_two_hundred_clients_ask(serve_process, seconds):
    with serve_process("--log-level", "warning", "--timeout-keep-alive", "3600") as served:
        pids = [served.process.pid, engine_pid(served)]
        clients = MixedStreams(served.url, 200, seed=1)
        probe = HealthProbe(int(served.url.rpartition(":")[2]), served.process.pid)
        sizes = []
        watching = threading.Thread(target=lambda: (time.sleep(min(60, seconds / 2)), sizes.append(sizes_mb(pids))))
        watching.start()
        clients.run(seconds)
        watching.join()
        sizes.append(sizes_mb(pids))
        probed, times_slower = probe.stop(), slowness()
        wait_until_idle(served.url)
        print(f"\n{dict(clients.answered)}, /health {probed.p99_s * 1000:.0f} ms for 99 of {probed.num_asked}, {sizes}")

        assert not clients.problems, f"{len(clients.problems)}: " + "\n".join(clients.problems[:5])
        assert set(clients.answered) == {*KINDS, "left early"}
        assert "Traceback" not in served.text, served.text[-5000:]
    assert probed.p99_s < MOST_SECONDS * times_slower
    if seconds >= 120:
        assert all(sizes[1][pid] - sizes[0][pid] < MOST_GROWTH_MB for pid in pids)
