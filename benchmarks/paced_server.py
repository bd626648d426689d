"""A server of streams that computes nothing and keeps an exact pace, so that what a client should find is known."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
from typing import Any

from atom_server.bench import event_loop

EVENT = b'data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
LAST = (
    'data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":"length"}]}\n\n'
    'data: {"id":"x","object":"text_completion","choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d,'
    '"total_tokens":%d}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream(asyncio.Protocol):
    """A connection: each completion that is asked for gets `max_tokens` events, one every `interval` seconds."""

    def __init__(self, interval: float, late: list[float]) -> None:
        self._interval, self._late = interval, late
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._event = chunk(EVENT)

    def connection_made(self, transport: Any) -> None:
        """Keep where to write."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request once its body is whole."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        if len(body) < (length := lengths[0] if lengths else 0):
            return
        self._received = body[length:]
        self._answer(lines[0].split()[1], body[:length])

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/v1/completions":
            self._transport.write(HEAD)
            self._left = self._asked = json.loads(body)["max_tokens"]
            self._next = self._loop.time() + self._interval
            self._loop.call_at(self._next, self._tell)
            return
        answers = {b"/v1/models": {"object": "list", "data": [{"id": "paced", "object": "model"}]}}
        answers[b"/late"] = late_ms(self._late)
        text = json.dumps(answers.get(path, {})).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
        )
        self._transport.write(text)

    def _tell(self) -> None:
        self._late.append(self._loop.time() - self._next)
        self._left -= 1
        if self._left <= 0:
            last = LAST % (self._asked, 8 + self._asked)
            self._transport.write(chunk(last.encode()) + b"0\r\n\r\n")
            return
        self._transport.write(self._event)
        self._next += self._interval
        self._loop.call_at(self._next, self._tell)


def late_ms(late: list[float]) -> dict[str, float]:
    """How late the events so far were written: the median and 99 of 100, in milliseconds."""
    if len(late) < 2:
        return {"median": 0.0, "p99": 0.0}
    return {"median": 1e3 * statistics.median(late), "p99": 1e3 * statistics.quantiles(late, n=100)[98]}


async def serve(port: int, interval: float) -> None:
    """Listen until the process is ended."""
    late: list[float] = []
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    server = await asyncio.get_running_loop().create_server(lambda: Stream(interval, late), sock=listener)
    await server.serve_forever()


def main() -> None:
    """Serve at `--port`, with one event of each stream every `--interval` seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval", type=float, required=True)
    options = parser.parse_args()
    event_loop.run(serve(options.port, options.interval))


if __name__ == "__main__":
    main()
