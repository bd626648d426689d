"""`Exchange`: a request to another server, and its answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from urllib.parse import SplitResult

import httptools

CONNECT_SECONDS = 10.0
_READ_BYTES = 1 << 16
Headers = list[tuple[bytes, bytes]]
# These are between two ends of a connection, and those of the client are not those of the server.
BETWEEN_TWO = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer", b"upgrade", b"expect")
)


class ServerLostError(Exception):
    """A server cannot be reached, or went away before the end of its answer."""


class Exchange:
    """A request to a server, and what it answers. Close it whatever happens, so that the server sees that nobody waits.

    Attributes:
        status, headers: what the answer begins with, once `send` has returned.
    """

    def __init__(self, url: SplitResult) -> None:
        self.status = 0
        self.headers: Headers = []
        self._url = url
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = self._has_length = self._is_over = self._is_closed = False
        self._pieces: list[bytes] = []

    async def send(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the request, and wait for the headers of the answer.

        Raises:
            ServerLostError: there is no answer.
        """
        secure = self._url.scheme == "https"
        host, port = self._url.hostname or "", self._url.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(host, port, ssl=secure or None)
        except OSError as error:
            raise ServerLostError(f"{self._url.netloc} cannot be reached: {error.strerror or error}") from None
        if self._is_closed:
            self.close()
        self._writer.write(_head(self._url, method, path, headers, len(body)) + body)
        while not self._has_head:
            await self._read(self._reader)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, as it comes.

        Raises:
            ServerLostError: it ends too early.
        """
        while True:
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield b"".join(pieces)
            elif self._is_over:
                return
            elif self._reader is not None:
                await self._read(self._reader)

    async def whole(self) -> bytes:
        """All of the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self) -> None:
        """End the connection at once, whoever waits for it."""
        self._is_closed = True
        if self._writer is not None:
            self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            data = await reader.read(_READ_BYTES)
        except OSError as error:
            raise ServerLostError(f"{self._url.netloc} went away: {error.strerror or error}") from None
        if not data:
            if self._has_head and not self._has_length:
                self._is_over = True
                return
            raise ServerLostError(f"{self._url.netloc} went away before the end of its answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ServerLostError(f"{self._url.netloc} does not answer as HTTP says: {error}") from None

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._has_length = self._has_length or name in (b"content-length", b"transfer-encoding")
        if name not in BETWEEN_TWO:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._is_over = True


def _head(url: SplitResult, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
    lines = [f"{method} {url.path}{path} HTTP/1.1", f"host: {url.netloc}", "connection: close"]
    lines.append(f"content-length: {length}")
    own = b"".join(b"%s: %s\r\n" % pair for pair in headers if pair[0] not in BETWEEN_TWO and pair[0] != b"host")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n" + own + b"\r\n"
