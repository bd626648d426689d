"""`BodyMemory`: how many bytes of unfinished request bodies the server holds, over all connections."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom_server.errors import RETRY_AFTER, APIError

# Files go to the disk as they come, and their routes limit them.
_ON_DISK = frozenset(("/v1/files",))
# A body of so many bytes is always taken: ordinary requests come through while somebody sends large ones.
_FREE_BYTES = 64 * 1024


class BodyMemory:
    """Refuses to read on in a large body while all unfinished bodies together are too large.

    Each body has a limit of its own. Without a common limit, a thousand clients could fill the memory with a body each.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET" or scope["path"] in _ON_DISK:
            return await self._app(scope, receive, send)
        num_bytes = 0

        def hold(total: int) -> None:
            nonlocal num_bytes
            self._num_bytes += total - num_bytes
            num_bytes = total

        async def counted() -> Message:
            message = await receive()
            if message["type"] == "http.request" and message.get("more_body"):
                hold(num_bytes + len(message["body"]))
                if num_bytes > _FREE_BYTES and self._num_bytes > self._most_bytes:
                    problem = "too many large requests are on their way; send this one again later"
                    raise APIError(503, problem, code="overloaded", headers=RETRY_AFTER)
            else:
                hold(0)  # whoever reads it has it now
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            hold(0)
