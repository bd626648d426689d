"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError

T = TypeVar("T")


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, whose request body has been read; cancel it when the client disconnects.

    Raises:
        APIError: with status 499, which only the log will show."""
    try:
        return await while_connected(request.receive, work)
    except ClientDisconnect:
        raise APIError(CLIENT_CLOSED_REQUEST, "the client went away", code="client_closed_request") from None


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Await `work` in this task: what need not wait is done at once. It is cancelled when the client disconnects.

    Raises:
        ClientDisconnect: the client is gone, and `work` has ended.
    """
    task = asyncio.current_task()
    leaving = asyncio.ensure_future(_disconnected(receive))
    has_left = has_ended = False

    def on_left(_: object) -> None:
        nonlocal has_left
        # It may be called when `work` has ended in the same turn of the loop: the task is at something else then.
        if task is not None and not has_ended and not leaving.cancelled():
            has_left = True
            task.cancel()

    leaving.add_done_callback(on_left)
    try:
        return await work
    except asyncio.CancelledError:
        # Whoever else cancels this task is to be told so.
        if has_left and task is not None and task.cancelling() == 1:
            raise ClientDisconnect from None
        raise
    finally:
        has_ended = True
        if has_left and task is not None:
            task.uncancel()
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel `tasks` and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
