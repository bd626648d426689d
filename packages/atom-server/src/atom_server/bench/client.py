"""A client of streams on bare asyncio connections: next to nothing is done between a token's arrival and its time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

_LINE_LIMIT = 1 << 20


class BenchError(RuntimeError):
    """What was asked for cannot be measured: by the flags, or since the server does not answer as it should."""


@dataclass
class Outcome:
    """How one request went. Times are in seconds from when it was sent; tokens are counted by the server.

    Attributes:
        sent: seconds after the run's start.
    """

    ttft: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    error: str = ""
    sent: float = 0.0

    def take(self, event: dict[str, Any], elapsed: float, gap: float) -> bool:
        """Count an event that came `gap` seconds after the last text; returns whether it has text itself."""
        if "error" in event:
            raise BenchError(str(event["error"]))
        if usage := event.get("usage"):
            self.num_input_tokens, self.num_output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if not any(_has_text(choice) for choice in event.get("choices", ())):
            return False
        if self.ttft:
            self.gaps.append(gap)
        else:
            self.ttft = elapsed
        return True


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

    async def stream(self, path: str, body: dict[str, Any]) -> Outcome:
        """Send a request for a stream, and time what comes. The outcome tells of failures."""
        outcome = Outcome()
        started = last = time.perf_counter()
        try:
            async with aclosing(self._events(path, body)) as events:
                async for event in events:
                    now = time.perf_counter()
                    if outcome.take(event, now - started, now - last):
                        last = now
        except (OSError, ValueError, BenchError, asyncio.IncompleteReadError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.latency = last - started
        return outcome

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that a path answers.

        Raises:
            BenchError: it could not be reached, or answered with an error.
        """
        try:
            content = b"" if body is None else json.dumps(body).encode()
            async with aclosing(self._exchange(method, path, content)) as chunks:
                return json.loads(b"".join([chunk async for chunk in chunks]))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise BenchError(f"{method} {path}: {error}") from None

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        rest = b""
        async with aclosing(self._exchange("POST", path, json.dumps(body).encode())) as answer:
            async for data in answer:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        yield json.loads(line[6:])

    async def _exchange(self, method: str, path: str, content: bytes) -> AsyncGenerator[bytes, None]:
        """The body of an answer, as it comes; BenchError for a status other than 200."""
        url = self._url
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure or None, limit=_LINE_LIMIT)
        try:
            head = f"{method} {url.path}{path} HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n{self._authorization}\r\n"
            writer.write(head.encode() + content)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            status = lines[0].split()[1]
            is_chunked = "transfer-encoding: chunked" in lines
            if status != "200":
                answer = (await reader.read())[:500].decode(errors="replace")
                raise BenchError(f"{method} {path} was answered with {status}: {answer}")
            async for chunk in _chunks(reader) if is_chunked else _blocks(reader):
                yield chunk
        finally:
            writer.close()


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta", choice)
    return bool(delta.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _blocks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    while data := await reader.read(1 << 16):
        yield data
