"""`Connection`: uvicorn's HTTP connection, with limits for what a client sends and how long it takes.

uvicorn's parser limits nothing. So it is fed in pieces, and whoever sends too much without getting anywhere is refused.
Errors are in OpenAI's shape here too.
"""

from __future__ import annotations

import asyncio
import enum
import http
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from atom_server.connections.departure import Departure
from atom_server.connections.limits import ConnectionLimits
from atom_server.connections.lingering_transport import LingeringTransport
from atom_server.connections.open_connections import OpenConnections
from atom_server.errors import RETRY_AFTER, APIError

# A client that still reads ignores these: one more interim answer, and a comment in a stream of events.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_EMPTY_EVENT = b"3\r\n:\n\n\r\n"


class Arriving(enum.Enum):
    """What the client is in the middle of sending."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class RefusedError(Exception):
    """Stops the parser where a request is refused."""


class Connection(HttpToolsProtocol):
    """One client. On its turn it has a deadline: to begin a request, to send headers or a body, or to read.

    A connection is kept for another request only if the last one was complete when its answer began. Otherwise it is
    closed after the answer: the client could go on sending for as long as it likes.
    """

    transport: LingeringTransport  # type: ignore[assignment]

    def __init__(self, *, limits: ConnectionLimits, others: OpenConnections, **settings: Any) -> None:
        super().__init__(**settings)
        self.access_log = False  # `request_log` tells of each request; uvicorn would where a root logger has a handler
        self.url = b""
        self._limits = limits
        self._others = others
        self._arriving = Arriving.NOTHING
        self._may_keep_alive = True
        self._num_begun = 0
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._num_fields = 0
        self._num_unparsed = 0  # bytes of an unfinished head, or since the last piece of a body
        self._refusal: APIError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: tuple[Arriving, int] | None = None
        self._client_ended = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._departure = Departure(transport, probe=self._probe, on_gone=transport.abort)
        super().connection_made(LingeringTransport(transport, self._limits, self._is_sending, self._departure))
        if self._others.add(self):
            self._set_deadline()
        else:
            message = "this server has as many connections as it may; try again"
            self._refuse(APIError(503, message, code="too_many_connections", headers=RETRY_AFTER))

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        self.transport.stop_watching()
        self._departure.stop()
        self._end_deadline()
        for cycle in self._unanswered:  # uvicorn tells the last one only, and the first may be at work
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self.transport.is_lingering:
                return self.transport.discard(len(data) - position)
            if self._refusal is not None or self.transport.is_closing():
                return
            piece = data[position : position + self._limits.head_bytes - self._num_unparsed]
            position += len(piece)
            self._num_unparsed += len(piece)
            self._parse(piece)
            if self._num_unparsed >= self._limits.head_bytes and self._refusal is None:
                self._refuse(self._too_long())
        self._set_deadline()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client ended its side. True if answers are due, which it may still read."""
        if not self._unanswered or self._arriving is not Arriving.NOTHING or not self.transport.can_write_eof():
            return False
        self._client_ended = True
        self._probe()
        self._departure.watch()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.watch(self._limits.request_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self.transport.stop_watching()

    def abort(self) -> None:
        """Close at once, to make room for another connection."""
        self.transport.abort()

    def shutdown(self) -> None:
        """What uvicorn calls when the server ends."""
        self._may_keep_alive = False
        if self._unanswered:
            super().shutdown()
        else:
            self.transport.close_soon()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.num_pipelined:
            self._stop(APIError(429, "too many requests at once on one connection", code="too_many_requests"))
        self._arriving = Arriving.HEAD
        self._num_begun += 1
        self._num_fields = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_fields += 1
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._stop(APIError(501, "bodies come as they are or in chunks: this transfer-encoding is not known here"))
        if self._num_fields > self._limits.num_fields:
            message = f"the request has more than {self._limits.num_fields} headers"
            self._stop(APIError(431, message, code="headers_too_large"))
        if self._arriving is Arriving.HEAD:  # trailers are not used here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_unparsed = 0
        if self._asks_for_upgrade():
            return
        super().on_headers_complete()
        self._arriving = Arriving.BODY
        self._unanswered.append(self.cycle)
        self._may_keep_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._num_unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._asks_for_upgrade():
            return
        self._num_unparsed = 0
        self._arriving = Arriving.NOTHING
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._may_keep_alive
        self._others.set_works(self, works=True)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls where the parser stopped."""
        self._refuse(self._refusal or APIError(400, "this is not a valid HTTP request", code="invalid_http"))

    # What an answer calls when it is complete.

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        if not self._unanswered:
            self._others.set_works(self, works=False)
            if not self.transport.is_closing() and (self._refusal is not None or self._client_ended):
                if self._refusal is not None:
                    self._write_refusal(self._refusal)
                self.transport.close()
        super().on_response_complete()
        # uvicorn's own deadline of an idle connection would go on under the next request, and cut its answer off.
        self._unset_keepalive_if_required()
        self._set_deadline()

    # Parsing.

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._asks_for_upgrade():
                self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _asks_for_upgrade(self) -> bool:
        """Whether a request asks for another protocol. There is none, so it is answered as if it had not asked.

        By itself the parser would take it for a request without a body.
        """
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse the head of the request anew, without that header, and what comes after it."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._parse(b"\r\n".join([*lines, b"", b""]))
        if rest and self._refusal is None:
            self._parse(rest)

    # Deadlines.

    def _set_deadline(self) -> None:
        """Set the deadline for the client's next move. Unlike uvicorn's, it is not put off by every byte."""
        awaited = None
        if self._arriving is not Arriving.NOTHING or not self._unanswered:
            awaited = (self._arriving, self._num_begun)
        if awaited == self._awaited:
            return
        self._end_deadline()
        if awaited is not None and not self.transport.is_closing():
            is_idle = self._arriving is Arriving.NOTHING and self._num_begun
            seconds = self._limits.idle_s if is_idle else self._limits.request_s
            self._awaited = awaited
            self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _end_deadline(self) -> None:
        self._awaited = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._end_deadline()
        is_our_turn = self.flow.read_paused or len(self._unanswered) > (self._arriving is Arriving.BODY)
        if is_our_turn:  # an earlier answer is on its way, or what has come has not been looked at
            self._set_deadline()
        elif self._arriving is Arriving.NOTHING and self._num_begun:
            self.transport.close()
        else:
            part = "body" if self._arriving is Arriving.BODY else "headers"
            message = f"the {part} of the request did not arrive within {self._limits.request_s:g} s"
            self._refuse(APIError(408, message, code="timeout"))

    def _probe(self) -> None:
        """Write what a waiting client ignores. If the client is gone, a reset comes back."""
        is_asked_for = self._client_ended or len(self._unanswered) > 1
        if not is_asked_for or not self._unanswered or self.flow.write_paused:
            return
        cycle = self._unanswered[0]
        if cycle.scope["http_version"] == "1.0":  # knows neither
            self.transport.abort()
        elif not cycle.response_started:
            self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding:  # only streams of events are: other answers tell their length
            self.transport.write(_EMPTY_EVENT)

    # Refusals.

    def _is_sending(self) -> bool:
        """Whether the client may be sending bytes that will not be read."""
        return self._arriving is not Arriving.NOTHING or self._refusal is not None

    def _stop(self, error: APIError) -> None:
        """Refuse from within the parser, which will call `send_400_response`."""
        self._refusal = error
        raise RefusedError

    def _too_long(self) -> APIError:
        limit = self._limits.head_bytes
        if len(self.url) > limit // 2 and self._arriving is Arriving.HEAD:
            return APIError(414, f"the URL and the headers are longer than {limit} bytes", code="url_too_long")
        return APIError(431, f"the headers are longer than {limit} bytes", code="headers_too_large")

    def _refuse(self, error: APIError) -> None:
        """Read nothing more of this client. After the answers on their way, tell it why, and close."""
        self._refusal = error
        if self._arriving is Arriving.BODY:
            self._drop_unfinished_request(error)
        elif not self._unanswered:
            self._write_refusal(error)
            self.transport.close()

    def _drop_unfinished_request(self, error: APIError) -> None:
        """The last request will never be whole."""
        self._arriving = Arriving.NOTHING
        self._unanswered.pop()
        if self._unanswered:  # its turn to be answered has not come, and will not
            return
        if not self.cycle.response_started:
            self._write_refusal(error)
        self.transport.close()

    def _write_refusal(self, error: APIError) -> None:
        answer = error.response(self.scope["path"] if self.scope and "path" in self.scope else "")
        answer.headers["connection"] = "close"
        headers = self.server_state.default_headers + answer.raw_headers
        lines = [f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
