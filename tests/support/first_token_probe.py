"""A client in a process of its own that streams a small answer now and then, and tells what its first tokens took.

The time for which the server's processes or the client itself were ready and others had the processors is taken off.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

from health_probe import Slow, computed_by, delays_of, times_of

_PAUSE_S = 0.1
_ASKED = {"prompt": "probe", "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True}


class FirstTokenProbe:
    """Asks the server at `port`, whose processes are `pids`, until `stop`; `key` is the client's own."""

    def __init__(self, port: int, pids: list[int], *, key: str) -> None:
        command = [sys.executable, __file__, str(port), key, *map(str, pids)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> list[Slow]:
        """End it; each first token, the slowest first."""
        told, _ = self._process.communicate("", timeout=120)
        assert self._process.returncode == 0, "the probe's request was not answered"
        return sorted((Slow(*slow) for slow in json.loads(told)), key=lambda slow: -slow.held)


def _ask(port: int, key: str, pids: list[int]) -> Slow:
    connection, own = HTTPConnection("127.0.0.1", port, timeout=60), Path("/proc/thread-self")
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    own_before, delays_before = times_of(own).delay, sum(map(delays_of, pids))
    computed_before = sum(map(computed_by, pids))
    asked = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(_ASKED), headers)
    answer = connection.getresponse()
    first = answer.readline()
    waited = time.monotonic() - asked
    delays = sum(map(delays_of, pids)) - delays_before + times_of(own).delay - own_before
    computed = sum(map(computed_by, pids)) - computed_before
    if answer.status != 200 or b'"choices"' not in first:
        raise SystemExit(f"{answer.status} {first + answer.read(500)!r}")
    answer.read()
    connection.close()
    # Threads that waited side by side are all taken off, so what the processes computed is the least that it was.
    return Slow(asked, waited, max(min(waited, computed) / len(pids), waited - delays))


def _main(port: int, key: str, pids: list[int]) -> None:
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    told = []
    while not stopped.wait(_PAUSE_S):
        told.append(_ask(port, key, pids))
    print(json.dumps(told))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], [int(pid) for pid in sys.argv[3:]])
