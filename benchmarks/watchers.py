"""Those who watch a server: a reader of metrics, a collector of traces, a subscriber of KV events, a log."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import zmq

from benchmarks.server_process import free_port

KINDS = ("log", "metrics", "traces", "events")
# As often as Prometheus is usually set up to read.
_SECONDS_BETWEEN_READINGS = 1.0
# OpenTelemetry sends spans within five seconds.
_LATE_SECONDS = 15.0


class Watchers:
    """Some of `KINDS`, ready to hear from one server.

    Args:
        kinds: which.
        folder: where the log of requests is written.

    Attributes:
        flags: what a server is started with, so that it is heard.
    """

    def __init__(self, kinds: Sequence[str], folder: Path) -> None:
        self._kinds, self._num_readings = kinds, 0
        self._requests = folder / "requests.jsonl"
        self._collector = Collector()
        self._subscriber = Subscriber()
        events = {"enable_kv_cache_events": True, "endpoint": self._subscriber.endpoint}
        flags = {
            "log": ["--log-level", "info", "--request-log", str(self._requests)],
            "metrics": [],
            "traces": ["--otlp-traces-endpoint", self._collector.address],
            "events": ["--kv-events-config", json.dumps(events)],
        }
        self.flags = [flag for kind in kinds for flag in flags[kind]]

    @contextlib.contextmanager
    def reading(self, port: int) -> Iterator[None]:
        """Read the metrics of the server at `port` each second, if that is asked for."""
        if "metrics" not in self._kinds:
            yield
            return
        stop = threading.Event()
        reader = threading.Thread(target=self._read, args=(port, stop))
        reader.start()
        try:
            yield
        finally:
            stop.set()
            reader.join()

    def check(self) -> None:
        """Wait for what comes late.

        Raises:
            RuntimeError: one of them has heard nothing, so that nothing is known of what it costs.
        """
        deadline = time.monotonic() + _LATE_SECONDS
        while deaf := [kind for kind in self._kinds if not self._heard(kind)]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing was heard of {', '.join(deaf)}: what they cost was not measured")
            time.sleep(0.1)

    def close(self) -> None:
        """Let go of all addresses."""
        self._collector.close()
        self._subscriber.close()

    def _heard(self, kind: str) -> int:
        return {
            "log": self._requests.stat().st_size if self._requests.exists() else 0,
            "metrics": self._num_readings,
            "traces": self._collector.num_posts,
            "events": self._subscriber.num_batches,
        }[kind]

    def _read(self, port: int, stop: threading.Event) -> None:
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                self._num_readings += answer.status == 200 and bool(answer.read())
            if stop.wait(_SECONDS_BETWEEN_READINGS):
                return


class Collector(ThreadingHTTPServer):
    """Takes spans as OTLP over HTTP, and counts how often some come."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _TakesSpans)
        self.num_posts, self.address = 0, f"http://127.0.0.1:{self.server_port}/v1/traces"
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Let go of the address."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class _TakesSpans(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        cast(Collector, self.server).num_posts += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class Subscriber:
    """Hears KV events, and counts their batches."""

    def __init__(self) -> None:
        self.endpoint, self.num_batches = f"tcp://127.0.0.1:{free_port()}", 0
        self._context = zmq.Context()
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def close(self) -> None:
        """Hear no more."""
        self._context.term()  # ends the thread too
        self._thread.join()

    def _hear(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated), self._context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(self.endpoint)
            while True:
                socket.recv_multipart()
                self.num_batches += 1
