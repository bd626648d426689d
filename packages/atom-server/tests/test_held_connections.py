"""A thousand idle and a thousand slow clients: a request of another costs the server what it costs without them."""

from __future__ import annotations

import contextlib
import resource
import sys
import time

import pytest

from http_edge import WHOLE, Client, EdgeProcess

EACH = 1000
# Processor time of the server for the same requests, beside those clients and alone.
MOST_TIMES = 1.6
MOST_KB_EACH = 32

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def seconds_of_requests(process: EdgeProcess, number: int) -> float:
    """Processor time of the server while one client asks so often."""
    before = process.computed_s
    with Client(process.port) as client:
        for _ in range(number):
            client.send(WHOLE)
            assert client.answer().status_code == 200
    return process.computed_s - before


def test_a_thousand_idle_and_a_thousand_slow_clients_cost_others_nothing():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with EdgeProcess() as process, contextlib.ExitStack() as stack:
        seconds_of_requests(process, 50)
        alone = min(seconds_of_requests(process, 100) for _ in range(3))
        size = process.resident_mb
        idle, slow = ([stack.enter_context(Client(process.port)) for _ in range(EACH)] for _ in range(2))
        for client in idle:
            client.send(WHOLE)
        for client in idle:
            assert client.answer().status_code == 200
        for length in range(8):  # byte by byte, and no further
            for client in slow:
                client.send(WHOLE[length : length + 1])
        beside = min(seconds_of_requests(process, 100) for _ in range(3))
        before = process.computed_s
        time.sleep(1)
        waiting = process.computed_s - before

        for client in (slow[0], slow[-1]):
            client.send(WHOLE[8:])
            assert client.answer().status_code == 200
        assert beside < alone * MOST_TIMES
        assert (process.resident_mb - size) * 1024 < 2 * EACH * MOST_KB_EACH
    assert waiting < alone, "two thousand clients that ask nothing cost more than a hundred requests"
