"""The pure-ASGI layer round the app: request ids, the log line, the API key. No body passes through a buffer here."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom_server.errors import APIError, as_api_error
from atom_server.request_log import RequestRecord

_CLIENT_ID = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
# Probes must not need the server's key.
OPEN_PATHS = frozenset(("/health", "/ready"))


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
        start = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            answer = as_api_error(error)
            if not record.status:
                await answer.response(scope["path"])(scope, receive, send_with_id)
        finally:
            record.log(time.perf_counter() - start)


class ApiKeys:
    """Asks for ``Authorization: Bearer <key>``, or ``x-api-key: <key>`` as Anthropic's clients send it, on every path
    but ``/health`` and ``/ready``; compares in constant time.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(Headers(scope=scope)):
            return await self._app(scope, receive, send)
        error = APIError(
            401,
            "a valid API key is required: send it as 'Authorization: Bearer <key>'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error.response(scope["path"])(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = headers.get("x-api-key", "")
        digest = hashlib.sha256(token.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)
