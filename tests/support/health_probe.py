"""A process that asks a server's ``/health`` all the time, and an idle process beside it; it tells the slowest answers.

The time that a thread was ready to run while other programs had the processors is known to the kernel. It is taken off,
so that a busy machine does not look like a server that froze.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

_PAUSE_S = 0.004
_NUM_TOLD = 40


class Slow(NamedTuple):
    """A slow answer: when it was asked for (``time.monotonic``), and seconds.

    `held` is what remains of `waited` without the time that the server or the probe waited for a processor.
    """

    asked: float
    waited: float
    held: float


class Probed(NamedTuple):
    """What a probe saw: how often it asked, the slowest answers of the server, and the slowest of the idle process.

    `p99_s` is what 99 of 100 answers did not take, in seconds of the server's own.
    """

    num_asked: int
    slowest: list[Slow]
    idle_s: float
    p99_s: float


class HealthProbe:
    """Probes the server at `port`, a process `pid`, until `stop`."""

    def __init__(self, port: int, pid: int) -> None:
        command = [sys.executable, __file__, str(port), str(pid)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> Probed:
        """End it; what it saw."""
        told, _ = self._process.communicate("", timeout=60)
        assert self._process.returncode == 0, "/health failed while it was probed"
        num_asked, slowest, idle_s, p99_s = json.loads(told)
        return Probed(num_asked, [Slow(*slow) for slow in slowest], idle_s, p99_s)


class Times(NamedTuple):
    """Seconds of threads so far: waiting for a processor, and running on one."""

    delay: float
    computed: float


def times_of(thread: Path) -> Times:
    """Those of a thread, which is a folder of ``/proc``."""
    try:
        computed, delay, _ = (thread / "schedstat").read_text().split()
    except OSError:  # it has ended
        return Times(0.0, 0.0)
    return Times(int(delay) / 1e9, int(computed) / 1e9)


def delays_of(pid: int) -> float:
    """Seconds that all threads of a process waited for a processor."""
    return sum(times_of(thread).delay for thread in Path(f"/proc/{pid}/task").iterdir())


def computed_by(pid: int) -> float:
    """Seconds that all threads of a process ran on one."""
    return sum(times_of(thread).computed for thread in Path(f"/proc/{pid}/task").iterdir())


def _ask(connection: HTTPConnection) -> None:
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
    except ConnectionError:  # it was idle for too long
        connection.close()
        connection.request("GET", "/health")
        answer = connection.getresponse()
    told = answer.read()
    if answer.status != 200:
        raise SystemExit(f"/health said {answer.status} {told[:200]!r}")


def _measure(connection: HTTPConnection, pid: int) -> Slow:
    """One question to `pid`, whose first thread runs the event loop."""
    loop, own = Path(f"/proc/{pid}/task/{pid}"), Path("/proc/thread-self")
    loop_before, own_before, all_before = times_of(loop), times_of(own), delays_of(pid)
    asked = time.monotonic()
    _ask(connection)
    waited = time.monotonic() - asked
    loop_after, own_after = times_of(loop), times_of(own)
    own_delay = own_after.delay - own_before.delay
    loop_delay = loop_after.delay - loop_before.delay
    # What the loop itself computed is the server's doing, however long other threads waited meanwhile.
    computed = min(waited - own_delay - loop_delay, loop_after.computed - loop_before.computed)
    return Slow(asked, waited, max(0.0, computed, waited - own_delay - (delays_of(pid) - all_before)))


@contextlib.contextmanager
def _idle_process() -> Iterator[int]:
    """A process that answers at once, for comparison; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if not pid:
            connection, _ = listener.accept()
            while connection.recv(65536):
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            os._exit(0)
        yield listener.getsockname()[1]
        os.waitpid(pid, 0)


def _main(port: int, pid: int) -> None:
    slowest: list[Slow] = []
    held: list[float] = []
    idle_s = 0.0
    stopped = threading.Event()
    with _idle_process() as idle_port:
        connection, idle = HTTPConnection("127.0.0.1", port, timeout=120), HTTPConnection("127.0.0.1", idle_port)
        threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
        while not stopped.is_set():
            slowest.append(_measure(connection, pid))
            held.append(slowest[-1].held)
            asked = time.monotonic()
            _ask(idle)
            idle_s = max(idle_s, time.monotonic() - asked)
            if len(slowest) > 20 * _NUM_TOLD:
                slowest = heapq.nlargest(_NUM_TOLD, slowest, key=lambda slow: slow.held)
            time.sleep(_PAUSE_S)
        connection.close()
        idle.close()
    slowest = heapq.nlargest(_NUM_TOLD, slowest, key=lambda slow: slow.held)
    print(json.dumps([len(held), slowest, idle_s, sorted(held)[len(held) * 99 // 100] if held else 0.0]))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
