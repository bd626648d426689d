"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, whose request body has been read; cancel it when the client disconnects.

    Raises:
        APIError: with status 499, which only the log will show."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise APIError(CLIENT_CLOSED_REQUEST, "the client went away", code="client_closed_request")
    finally:
        await cancel_all(working, leaving)


async def disconnected(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel `tasks` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
