"""Random hostile requests to ``atom serve``: each answer is in order, nobody waits for it, nothing stays behind."""

from __future__ import annotations

import resource
import sys

import httpx
import pytest

from child_processes import children_of
from fuzzed_requests import RequestFuzzer
from fuzzing_clients import FuzzingClients
from health_probe import HealthProbe
from machine_speed import slowness
from serving_processes import kilobytes, sizes_mb, wait_until_idle

SEED = 20
# What `/health` may take, in seconds of the server's own, on a quiet machine.
MOST_SECONDS = 0.1
# Memory that a process may take beside what it has at the start. Not RLIMIT_AS: address space that torch and the
# allocators reserve and never touch would count. Not a look at its size now and then: a request of 40 bytes once took
# all memory of the machine between two looks. A server that meets the limit fails, and the machine that tests it stays.
MEMORY_LIMIT = 2**30
# What requests that were all sent before may add, while the allocator settles: five passes of the same 1,000 took the
# server to 175, 187, 186, 192 and 189 MB.
MOST_GROWTH_MB = 32

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
GOOD = {"prompt": "hello there", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def limit_memory(pids: list[int]) -> None:
    for pid in pids:
        most = kilobytes(pid, "VmData") * 1024 + MEMORY_LIMIT
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))


def good_answer(url: str) -> list[int]:
    answer = httpx.post(url + "/v1/completions", json=GOOD, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


@pytest.mark.timing
@pytest.mark.parametrize("number", [250, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.by_hand])])
def test_hostile_requests_are_answered_delay_nobody_and_leave_nothing_behind(serve_process, number):
    with serve_process("--timeout-request", "2", "--timeout-keep-alive", "1", "--log-level", "warning") as served:
        pids = [served.process.pid, *children_of(served.process.pid)]
        assert len(pids) >= 2, "the engine is a process of its own"
        expected = good_answer(served.url)
        limit_memory(pids)
        times_slower = slowness()
        document = httpx.get(served.url + "/openapi.json", timeout=60).json()
        port = int(served.url.rpartition(":")[2])
        clients = FuzzingClients(port)
        probe = HealthProbe(port, served.process.pid)
        sizes = [sizes_mb(pids)]
        for count in (number, number // 2):
            clients.send(count, RequestFuzzer(document, SEED))
            wait_until_idle(served.url)
            sizes.append(sizes_mb(pids))
        times_slower = max(times_slower, slowness())
        probed = probe.stop()
        report(clients, probed, sizes, pids)

        assert not clients.problems, "\n".join(clients.problems[:20])
        assert "Traceback" not in served.text, served.text[-5000:]
        assert served.process.poll() is None
        assert good_answer(served.url) == expected
    assert max(slow.held for slow in probed.slowest) < MOST_SECONDS * times_slower
    assert all(sizes[2][pid] - sizes[1][pid] < MOST_GROWTH_MB for pid in pids)


def report(clients, probed, sizes, pids) -> None:
    """What was measured, for people: ``pytest -s`` shows it, and so does a failure."""
    print(f"\n{len(clients.sent)} requests, answers {dict(sorted(clients.statuses.items()))}")
    for name, pid in zip(("server", "engine"), pids, strict=False):
        print(f"{name}: {[f'{size[pid]:.0f} MB' for size in sizes]}, most {kilobytes(pid, 'VmHWM') // 1024} MB")
    print(f"/health asked {probed.num_asked} times; an idle process took {probed.idle_s * 1000:.0f} ms at most")
    for slow in probed.slowest[:10]:
        print(f"  {slow.held * 1000:.0f} ms of the server's own, {slow.waited * 1000:.0f} ms in all, while there were")
        for sent in clients.under_way(slow.asked, slow.asked + slow.waited)[:6]:
            print(f"    {sent.ended - sent.started:.2f} s: {sent.summary[:300]}")
