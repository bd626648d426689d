"""The pure-ASGI layers round the app: request ids and the log line, and HEAD. No body passes through a buffer here."""

from __future__ import annotations

import asyncio
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom_server.access.guard import caller_of
from atom_server.errors import as_api_error, shutting_down
from atom_server.request_log import PROBES, RequestRecord

_CLIENT_ID = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class HeadAsGet:
    """Answers HEAD as GET; the connection leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class RequestContext:
    """Gives each request an id (the client's ``x-request-id`` where it is harmless) and a log line.

    It also answers for exceptions that nothing else caught, in OpenAI's shape.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _CLIENT_ID.fullmatch(given) else uuid.uuid4().hex
        record = RequestRecord(request_id, scope["method"], scope["path"])
        scope.setdefault("state", {})["record"] = record
        server = getattr(getattr(scope.get("app"), "state", None), "server", None)
        if server is not None:
            server.open_requests.add(record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # A server that ends cancels what is left: that is no fault, and needs no traceback.
            if server is None or not server.draining:
                raise
            if not record.status:
                await shutting_down().response(scope["path"])(scope, receive, send_with_id)
        except Exception as error:
            answer = as_api_error(error)
            if not record.status:
                await answer.response(scope["path"])(scope, receive, send_with_id)
        finally:
            if server is not None:
                server.open_requests.discard(record)
                record.key = caller_of(Request(scope)).name
                if scope["path"] not in PROBES:
                    server.metrics.take_status(record.status)
                    if server.request_file is not None:
                        server.request_file.write(record)
                    if server.traces is not None:
                        server.traces.take(record, Headers(scope=scope))
            record.log()
