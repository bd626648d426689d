"""One HTTP request and its answer, on a bare asyncio connection: its bytes are handed on the moment they come.

What is done for each read is a call of a parser in C and one of `on_body`, so that a client of a thousand streams has
time left.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult

import httptools

_ERROR_BYTES = 500
OnBody = Callable[[bytes, float], None]
"""``(data, now)``: a part of the body, and when it came by `time.perf_counter`."""


class StatusError(RuntimeError):
    """The answer has a status other than 200; the message is the status and how the body begins."""


class HttpExchange(asyncio.Protocol):
    """Sends `request` once it is connected, and gives the body of an answer with status 200 to `on_body`.

    Attributes:
        done: a future that is set at the end of the answer, or has what went wrong: OSError, StatusError, or what
            `on_body` raised.
    """

    def __init__(self, request: bytes, on_body: OnBody) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._take = request, on_body
        self._parser = httptools.HttpResponseParser(self)
        self._refusal: list[bytes] | None = None
        self._ends_with_connection = True
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport: Any = transport
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except Exception as error:
            # The parser wraps what its callbacks raise.
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            malformed = OSError(f"the answer is not HTTP: {error}")
            self._finish(malformed if cause is None or isinstance(cause, httptools.HttpParserError) else cause)

    def connection_lost(self, error: BaseException | None) -> None:
        """The other side closed, or something broke."""
        if error is None and self._now and self._ends_with_connection:
            self._finish(None)
        self._finish(error or ConnectionError("the connection was closed within the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer; called by the parser."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        """All headers of the answer; called by the parser."""
        if self._parser.get_status_code() != 200:
            self._refusal = []

    def on_body(self, data: bytes) -> None:
        """A part of the body; called by the parser."""
        if self._refusal is None:
            self._take(data, self._now)
        else:
            self._refusal.append(data)

    def on_message_complete(self) -> None:
        """The end of the answer; called by the parser."""
        self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None and self._refusal is not None:
            text = b"".join(self._refusal)[:_ERROR_BYTES].decode(errors="replace")
            error = StatusError(f"{self._parser.get_status_code()}: {text}")
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._transport.close()


async def exchange(url: SplitResult, request: bytes, on_body: OnBody) -> None:
    """Send `request` to the server of `url`, and return at the end of the answer (see `HttpExchange.done`)."""
    secure = url.scheme == "https"
    host, port = url.hostname or "", url.port or (443 if secure else 80)
    make = asyncio.get_running_loop().create_connection
    try:
        transport, protocol = await make(lambda: HttpExchange(request, on_body), host, port, ssl=secure or None)
    except OSError as error:
        raise ConnectionError(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    try:
        await protocol.done
    finally:
        transport.close()


def request_bytes(method: str, url: SplitResult, path: str, *, body: Any = None, headers: str = "") -> bytes:
    """A request whose connection ends with its answer; `headers` are whole lines."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {url.path}{path} HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n{headers}\r\n"
    return head.encode() + content
