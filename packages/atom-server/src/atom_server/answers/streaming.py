"""Server-sent events: one chunk of JSON after another, errors as events, `[DONE]` at the end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atom_core import RequestOutput
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


class EventWriter(ABC):
    """Writes what a stream tells of a generation: whole events, or no bytes where there is nothing to tell."""

    def begin(self) -> bytes:
        """What is told before any news."""
        return b""

    @abstractmethod
    def take(self, index: int, output: RequestOutput) -> bytes:
        """What is told of one choice's news."""

    def end(self) -> bytes:
        """What is told after the last news."""
        return DONE

    def fail(self, error: APIError) -> bytes:
        """What is told at the end where there was an error."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def close(self) -> None:  # noqa: B027 - most have nothing to do then
        """Nothing more is told, whether all has been or not."""


async def tell(generation: Generation, writer: EventWriter, send: Callable[[bytes, bool], Awaitable[None]]) -> None:
    """Send what is told of a generation. Events of news that are there together are sent together.

    An exception becomes an event of its own, behind those of the news before it.

    Args:
        send: takes events, and whether more will follow.
    """
    held: list[bytes] = []
    try:
        if data := writer.begin():
            await send(data, True)
        while (news := await generation.news()) is not None:
            for index, output in news:
                held.append(writer.take(index, output))
            if data := b"".join(held):
                await send(data, True)
            held.clear()
        held.append(writer.end())
    except Exception as error:
        held.append(writer.fail(as_api_error(error)))
    await send(b"".join(held), False)


class EventStream(Response):
    """Tells of `generation` as `writer` writes until it ends or the client goes away, then closes it.

    Whatever happens, the status was sent long before.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        generation: Generation,
        writer: EventWriter,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._record = request.state.record
        self._generation = generation
        self._writer = writer
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """As usual, but without a content-length: it is not known yet."""
        super().init_headers(headers)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A task of its own: waking this one for each token would go through all that has called it.
            await while_connected(receive, asyncio.ensure_future(self._tell(send)))
        except ClientDisconnect:
            self._record.status = CLIENT_CLOSED_REQUEST
        finally:
            self._writer.close()
            self._generation.report(self._record)
            await self._generation.close()

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await tell(
            self._generation,
            self._writer,
            lambda body, more_body: send({"type": "http.response.body", "body": body, "more_body": more_body}),
        )
