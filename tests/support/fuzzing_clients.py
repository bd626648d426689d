"""Clients that send fuzzed requests, several at a time, and judge every answer."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from typing import NamedTuple

import h11

from fuzzed_requests import FuzzedRequest, RequestFuzzer

# Long lists of one client are computed one after the other, and the machine may be busy.
_TIMEOUT_S = 300
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws the connection away


class Sent(NamedTuple):
    """A request that was sent: when (``time.monotonic``), until when, and its beginning."""

    started: float
    ended: float
    summary: str


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class FuzzingClients:
    """Sends what fuzzers draw to a port of this machine.

    Attributes:
        problems: what was wrong with an answer, with the beginning of its request.
        sent: every request.
        statuses: how many answers had each status.
    """

    def __init__(self, port: int, *, num_threads: int = 4) -> None:
        self._port = port
        self._num_threads = num_threads
        self._drawing = threading.Lock()
        self.problems: list[str] = []
        self.sent: list[Sent] = []
        self.statuses: Counter[int] = Counter()

    def send(self, number: int, fuzzer: RequestFuzzer) -> None:
        """Send so many that `fuzzer` draws, and return when all are answered."""
        self._left, self._fuzzer = number, fuzzer
        threads = [threading.Thread(target=self._send_all) for _ in range(self._num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def under_way(self, begin: float, end: float) -> list[Sent]:
        """The requests that were sent or worked on then, the latest first."""
        meanwhile = [sent for sent in self.sent if sent.started <= end and sent.ended >= begin]
        return sorted(meanwhile, key=lambda sent: -sent.started)

    def _send_all(self) -> None:
        while request := self._drawn():
            started = time.monotonic()
            try:
                answers = answers_to(self._port, request)
            except (OSError, h11.ProtocolError) as error:
                # A client that ended its side early need not be answered.
                answers, problems = [], [] if request.ends_early else [f"{type(error).__name__}: {error}"]
            else:
                problems = [problem for answer in answers if (problem := problem_of(answer))]
                if not answers and request.is_http and request.leaves_after is None:
                    problems.append("no answer")
            self.sent.append(Sent(started, time.monotonic(), request.summary))
            self.statuses.update(answer.status for answer in answers)
            self.problems += [f"{problem}: {request.summary}" for problem in problems]

    def _drawn(self) -> FuzzedRequest | None:
        with self._drawing:
            self._left -= 1
            return self._fuzzer.next() if self._left >= 0 else None


def answers_to(port: int, request: FuzzedRequest) -> list[Answer]:
    """Everything that comes back for a request; nothing where the client leaves before it came.

    Raises:
        h11.ProtocolError: what came is not HTTP, or ended too soon.
        OSError: no end came.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
        received = b""
        try:
            connection.sendall(request.content)
            if request.ends_early:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused before all of it was sent; the answer tells
        parts, size = [], 0
        try:
            while request.leaves_after is None or size < request.leaves_after:
                part = connection.recv(2**18)
                if not part:
                    break
                parts.append(part)
                size += len(part)
        except ConnectionResetError:
            if not parts and request.is_http:
                raise
        if request.leaves_after is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return []
        received = b"".join(parts)
    return parsed(received, method=request.content[:4])


def parsed(received: bytes, *, method: bytes) -> list[Answer]:
    """The answers that `received` is made of.

    Raises:
        h11.ProtocolError: it is not made of whole answers.
    """
    answers = []
    while received:
        reader = h11.Connection(h11.CLIENT)
        verb = "HEAD" if method == b"HEAD" else "POST"
        reader.send(h11.Request(method=verb, target="/", headers=[("host", "x"), ("content-length", "0")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(received)
        reader.receive_data(b"")
        answer, body = None, bytearray()
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
                answer = Answer(event.status_code, headers, b"")
            elif isinstance(event, h11.Data):
                body += event.data
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError(f"the answer is cut short: {received[-200:]!r}")
        if answer is not None:
            answers.append(answer._replace(body=bytes(body)))
        received = reader.trailing_data[0]
        if method == b"HEAD":
            break
    return answers


def problem_of(answer: Answer) -> str | None:
    """What is wrong with an answer to any request; None where it is fine."""
    kind = answer.headers.get("content-type", "")
    if answer.status >= 500 and (answer.status != 503 or not answer.headers.get("retry-after", "").isdecimal()):
        return f"status {answer.status} {answer.body[:300]!r}"
    if b"internal_error" in answer.body or b"server_error" in answer.body:
        return f"an internal error within {answer.status}: {answer.body[-300:]!r}"
    try:
        if kind.startswith("text/event-stream"):
            lines = [line for line in answer.body.decode().split("\n") if line.startswith("data: ")]
            if not [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]:
                return "an empty stream"
        elif kind.startswith("application/json") and answer.body:
            content = json.loads(answer.body)
            if answer.status >= 400 and set(content["error"]) != {"message", "type", "param", "code"}:
                return f"not the shape of an error: {answer.body[:300]!r}"
        elif answer.status >= 400 and answer.body:
            return f"an error that is {kind or 'without a type'}: {answer.body[:300]!r}"
    except (ValueError, KeyError, TypeError) as error:
        return f"{error!r} in {answer.status} {answer.body[:300]!r}"
    return None
