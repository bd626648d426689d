"""`PlainRoute`: for functions that read the request by themselves and give a whole `Response`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response


class PlainRoute(APIRoute):
    """Calls its function with the request, where it takes nothing else and nothing has to be asked before it.

    FastAPI would look for what else it takes, each time, and for a body to write.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.dependencies or list(inspect.signature(self.endpoint).parameters) != ["request"]:
            return super().get_route_handler()
        return self.endpoint
