"""Five hundred streams at once: each is whole, and the server's event loop stays on time, as it tells itself."""

from __future__ import annotations

import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from health_probe import HealthProbe
from machine_speed import pace, slowness
from raw_streams import read_streams

NUM_STREAMS = 500
MAX_TOKENS = 72
# Seconds between two that come: all of them are there before the first one ends.
APART = 0.002
# Seconds of the server's own time that 99 of 100 answers of `/health` take at most, and the lag that 99 of 100 looks
# at its loop find at most.
MOST_SECONDS = 0.05
# Where the same work takes longer than on a quiet machine by so much, what others do makes the loop late, and too few
# answers come for 99 of 100 to mean anything.
QUIET = 1.5


def lags(url: str) -> dict[float, float]:
    """How many looks found the loop at most so late, by the bounds of the histogram."""
    families = text_string_to_metric_families(httpx.get(url + "/metrics", timeout=60).text)
    [family] = [family for family in families if family.name == "atom:event_loop_lag_seconds"]
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    return {float(sample.labels["le"]): sample.value for sample in buckets}


def late_bound(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """The smallest bound that `share` of the looks between two readings kept."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in counts.items() if count >= share * counts[float("inf")])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timing
def test_five_hundred_streams_are_whole_and_the_loop_is_on_time(serve_process):
    flags = ("--max-num-seqs", "512", "--num-kv-blocks", "4096", "--log-level", "warning")
    with serve_process(*flags) as served:
        port = int(served.url.rpartition(":")[2])
        asked = [
            {"prompt": f"client {number}", "max_tokens": MAX_TOKENS, "ignore_eos": True}
            for number in range(NUM_STREAMS)
        ]
        read_streams(port, asked[:20], apart=0)
        before, slower, probe = lags(served.url), pace(), HealthProbe(port, served.process.pid)
        streams = read_streams(port, asked, apart=APART)
        probed, after, slower = probe.stop(), lags(served.url), max(slower, pace())
        late = late_bound(before, after, 0.99)
        print(f"\n{late} s late for 99 of 100 ({slower:.1f} times slower); /health {probed.p99_s * 1000:.0f} ms")

        assert {stream.status for stream in streams} == {200}
        assert all(stream.is_whole for stream in streams)
        assert "Traceback" not in served.text, served.text[-5000:]
    if slower < QUIET:
        assert (probed.p99_s < MOST_SECONDS * slowness(), late <= MOST_SECONDS) == (True, True)
