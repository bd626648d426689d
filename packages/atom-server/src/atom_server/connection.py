"""`Connection`: uvicorn's HTTP connection, with a deadline for headers, and errors in OpenAI's shape here too."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from atom_server.errors import APIError

HEADER_TIMEOUT_S = 30.0


class Connection(HttpToolsProtocol):
    """Gives a client `HEADER_TIMEOUT_S` to send its headers, from when it connects or begins another request.

    Whoever connects and sends next to nothing would hold a connection for good.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._end_deadline()
        self._start_deadline()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_deadline()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers where no HTTP can be made out."""
        self._refuse(APIError(400, "this is not a valid HTTP request", code="invalid_http"))

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_deadline()  # another answer is still on its way
            return
        message = f"the headers of the request did not arrive within {HEADER_TIMEOUT_S:g} s"
        self._refuse(APIError(408, message, code="timeout"))

    def _refuse(self, error: APIError) -> None:
        body = error.body()
        reason = {400: "Bad Request", 408: "Request Timeout"}[error.status]
        head = f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
