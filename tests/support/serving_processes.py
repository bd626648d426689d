"""What tests do to `atom serve` as a process: requests in threads, and a look at its engine."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import httpx

from child_processes import children_of

ENDLESS = {"prompt": "once", "max_tokens": 500, "ignore_eos": True, "temperature": 0, "stream": True}


class Stream:
    """A stream that is read in a thread, so that the test can do other things meanwhile."""

    def __init__(self, url, fields=ENDLESS):
        self.events: list[str] = []
        self.error: Exception | None = None
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, fields), daemon=True)
        self._thread.start()
        assert self.started.wait(20)

    def finish(self):
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.events

    @property
    def text(self):
        chunks = [json.loads(event[6:]) for event in self.events if event.startswith('data: {"id"')]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    def _read(self, url, fields):
        try:
            with httpx.stream("POST", url + "/v1/completions", json=fields, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.events.append(line)
                        self.started.set()
        except Exception as error:
            self.error = error
        finally:
            self.started.set()


def post(running, **fields):
    return httpx.post(running.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1} | fields, timeout=30)


def exit_code(running, seconds=60):
    """The code with which a server ends; where the time is no claim of the test, it is enough for a busy machine."""
    return running.process.wait(seconds)


def engine_pid(running):
    [pid] = children_of(running.process.pid, "core_process")
    return pid


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def kilobytes(pid: int, name: str) -> int:
    """A size that the kernel tells of a process, such as its memory (``VmRSS``)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def sizes_mb(pids: list[int]) -> dict[int, float]:
    return {pid: kilobytes(pid, "VmRSS") / 1024 for pid in pids}


def wait_until_idle(url: str, seconds: float = 60, *, key: str = "") -> None:
    """Until the server has nothing left to do."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        load = httpx.get(url + "/load", timeout=60, headers=headers).json()
        if not (load["server_load"] or load["num_requests_running"] or load["num_requests_waiting"]):
            return
        time.sleep(0.1)
    raise AssertionError(f"requests are left: {load}")
