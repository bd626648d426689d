"""A client of streams on bare asyncio connections: next to nothing is done between a token's arrival and its time."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from atom_server.bench.backends.backend import Ask, Backend
from atom_server.bench.event_lines import EventLines
from atom_server.bench.http_exchange import StatusError, exchange, request_bytes
from atom_server.bench.outcome import BenchError, Outcome


class Client:
    """Sends JSON to one server.

    Args:
        base_url: "http://host:port"; a path in it comes before every path.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._url: SplitResult = urlsplit(base_url.rstrip("/"))
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise BenchError(f"{base_url!r} is not a URL such as http://127.0.0.1:8000")
        self._authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""

    async def stream(self, backend: Backend, path: str, ask: Ask) -> Outcome:
        """Send a request in the backend's words, and time what comes. The outcome tells of failures."""
        outcome, lines = Outcome(), EventLines()
        whole: list[bytes] = []
        request = request_bytes("POST", self._url, path, body=backend.body(ask), headers=self._authorization)
        started = time.perf_counter()

        def read(event: bytes, now: float) -> None:
            text = backend.read(msgspec.json.decode(event), outcome)
            if text:
                outcome.note(text, now - started)

        def on_body(data: bytes, now: float) -> None:
            if not backend.streams:
                whole.append(data)
                return
            for event in lines.feed(data):
                read(event, now)

        try:
            await exchange(self._url, request, on_body)
            now = time.perf_counter()
            if whole:
                read(b"".join(whole), now)
            if last := list(lines.feed(lines.end() + b"\n")):
                read(last[0], now)
            if not outcome.pieces and not outcome.num_output_tokens:
                raise BenchError(f"the answer has neither text nor tokens; is {path} the endpoint of this backend?")
            outcome.end(now - started)
        except (OSError, ValueError, KeyError, TypeError, BenchError, StatusError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.num_input_tokens = outcome.num_input_tokens or ask.num_tokens
        return outcome

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that a path answers.

        Raises:
            BenchError: it could not be reached, or answered with an error.
        """
        pieces: list[bytes] = []
        request = request_bytes(method, self._url, path, body=body, headers=self._authorization)
        try:
            await exchange(self._url, request, lambda data, _: pieces.append(data))
            content = b"".join(pieces)
            return json.loads(content) if content else None
        except (OSError, ValueError, StatusError) as error:
            raise BenchError(f"{method} {path} was answered with {error}") from None
