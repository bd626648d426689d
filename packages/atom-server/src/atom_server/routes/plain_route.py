"""`PlainRoute`: for functions that read the request by themselves and give a whole `Response`."""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class PlainRoute(APIRoute):
    """Calls its function with the request, where it takes nothing else, gives a `Response` and has no dependencies.

    FastAPI would look for what else it takes, each time, and keep lists of what to close behind it.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        signature = inspect.signature(self.endpoint, eval_str=True)
        gives_answer = isinstance(given := signature.return_annotation, type) and issubclass(given, Response)
        self._is_plain = gives_answer and [*signature.parameters] == ["request"] and not self.dependencies

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_plain or scope["method"] not in self.methods:  # the latter is refused
            return await super().handle(scope, receive, send)
        answer = await self.endpoint(Request(scope, receive, send))
        await answer(scope, receive, send)
