"""`ApiKeys`: only open routes can be reached without a known key."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from atom_server.access.keys import ANYBODY, Caller, KeyRing
from atom_server.errors import APIError

# Probes must not need the server's key.
OPEN_PATHS = frozenset(("/health", "/ready"))
METRICS_PATH = "/metrics"


class ApiKeys:
    """Asks for ``Authorization: Bearer <key>``, or ``x-api-key: <key>`` as Anthropic's clients send it.

    Every path that is not open needs a key, so a new route is closed until somebody opens it. The caller is left in
    the request's state.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, *, open_paths: Collection[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Lines of batches are asked by the server itself: whose they are was found out before.
            known = scope.get("state", {}).get("caller")
            caller = known or self._keys.find(_given(Headers(scope=scope)))
            if caller is not None:
                scope.setdefault("state", {})["caller"] = caller
            elif scope["path"] not in self._open_paths:
                error = APIError(
                    401,
                    "a valid API key is required: send it as 'Authorization: Bearer <key>'",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
                return await error.response(scope["path"])(scope, receive, send)
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Who sent a request."""
    return getattr(request.state, "caller", ANYBODY)


async def needs_admin(request: Request) -> None:
    """For routes that are about the server itself.

    Raises:
        APIError: 403; another key was given.
    """
    if not caller_of(request).is_admin:
        message = "this is for the server's administrator: send the key that --admin-key (or ATOM_ADMIN_KEY) sets"
        raise APIError(403, message, code="admin_key_required")


def _given(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        token = headers.get("x-api-key", "")
    return token.strip()
