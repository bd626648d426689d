"""Server-sent events: one chunk of JSON after another, errors as events, `[DONE]` at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atom_core.engine.outputs.request_stream import MAX_NEWS_IN_A_ROW
from atom_server.connections.disconnect import while_connected
from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError, as_api_error
from atom_server.generation.generation import Generation

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def named_event(name: str, chunk: Any) -> bytes:
    """`chunk` as one event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(chunk) + b"\n\n"


def event(chunk: Any) -> bytes:
    """`chunk` (a msgspec struct) as one event."""
    return b"data: " + _encode(chunk) + b"\n\n"


class EventStream(Response):
    """Sends `events` until they end or the client goes away, then closes `generation`.

    Events of news that are there together are sent together. So `events` gives bytes for each piece of news, which are
    empty where nothing is to be told of it.

    An exception in `events` becomes an event of its own: the status was sent long before.

    Args:
        end: the last bytes, whatever happened.
        failure: writes the event of an exception.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        generation: Generation,
        events: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        end: bytes = DONE,
        failure: Callable[[APIError], bytes] | None = None,
    ) -> None:
        self._end = end
        self._failure = failure or _error_event
        self.status_code = 200
        self.background = None
        self.body = b""
        self._record = request.state.record
        self._generation = generation
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """As usual, but without a content-length: it is not known yet."""
        super().init_headers(headers)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A task of its own: waking this one for each token would go through all that has called it.
            await while_connected(receive, asyncio.ensure_future(self._send_events(send)))
        except ClientDisconnect:
            self._record.status = CLIENT_CLOSED_REQUEST
        finally:
            await self._events.aclose()
            self._generation.report(self._record)
            await self._generation.close()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        held: list[bytes] = []
        try:
            async for data in self._events:
                held.append(data)
                if self._generation.has_next and len(held) < MAX_NEWS_IN_A_ROW:
                    continue
                if data := b"".join(held):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                held.clear()
            last = self._end
        except Exception as error:
            last = self._failure(as_api_error(error)) + self._end
        await send({"type": "http.response.body", "body": b"".join(held) + last, "more_body": False})


def _error_event(error: APIError) -> bytes:
    return b"data: " + error.body() + b"\n\n"
