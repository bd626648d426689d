"""Requests of a batch go to the routes of an app as those of clients do, without a port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from atom_server.access.keys import Caller
from atom_server.batches.journal import Answer
from atom_server.batches.lines import BatchLine
from atom_server.batches.run import Ask

_JSON = {"content-type": "application/json"}


@contextlib.asynccontextmanager
async def asking(app: ASGIApp, caller: Caller | None = None) -> AsyncGenerator[Ask, None]:
    """What asks the routes of `app`; as `caller`, whose key need not be sent then."""

    async def app_for_caller(scope: Scope, receive: Receive, send: Send) -> None:
        state: dict[str, Any] = {} if caller is None else {"caller": caller}
        await app({**scope, "state": state}, receive, send)

    async def ask(line: BatchLine) -> Answer:
        content = await asyncio.to_thread(msgspec.json.encode, line.body)
        answer = await client.post(line.url, content=content, headers=_JSON)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # An app that ends answers what it cancels: the answer is not this line's.
            raise asyncio.CancelledError
        retry_after = answer.headers.get("retry-after", "")
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        return Answer(answer.status_code, answer.headers["x-request-id"], answer.content, seconds)

    transport = httpx.ASGITransport(app_for_caller)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield ask
