"""`ResponseRun`: makes one response, while a client listens or in the background, for the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from atom_server.answers.whole_answer import written
from atom_server.errors import APIError, as_api_error
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation
from atom_server.responses.event_log import EventLog
from atom_server.responses.store import ResponseStore, StoredResponse
from atom_server.responses.writer import ResponseWriter


class ResponseRun:
    """One response on its way.

    Args:
        stored: what has been made of it; its `response` is replaced at the end.
        store: where it is kept; None keeps nothing.
    """

    def __init__(
        self,
        request: Request,
        generation: Generation,
        writer: ResponseWriter,
        stored: StoredResponse,
        store: ResponseStore | None,
    ) -> None:
        self._request = request
        self._generation = generation
        self._writer = writer
        self._stored = stored
        self._store = store

    def keep(self, response: dict[str, Any]) -> None:
        """Keep the response as it ended."""
        self._stored.response = response
        if self._store is not None:
            self._store.put(self._stored)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream's events; they can be read again once it has ended."""
        log = EventLog()
        self._stored.events = log if self._store is not None else None
        try:
            async with aclosing(self._writer.events(self._generation, self.keep)) as events:
                async for data in events:
                    if self._store is not None:
                        log.append(data)
                    yield data
        finally:
            log.close()
            self._count_anew()

    async def start(self, *, streams: bool) -> None:
        """Go on in the background, with a log of events where the response `streams`.

        Raises:
            APIError: 503; as many as can be are being made already.
        """
        if streams:
            self._stored.events = EventLog()
        try:
            if self._store is not None:
                self._store.put(self._stored)
        except APIError:
            await self._generation.close()
            raise
        self._stored.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self._finish()
        except asyncio.CancelledError:
            self._end(self._writer.unfinished("cancelled"))
            raise
        finally:
            if self._stored.events is not None:
                self._stored.events.close()
            self._count_anew()
            await self._generation.close()

    async def _finish(self) -> None:
        log = self._stored.events
        if log is not None:
            async with aclosing(self._writer.events(self._generation, self._end)) as events:
                async for data in events:
                    log.append(data)
            self._generation.report(self._request.state.record)
            return
        try:
            [choice] = await collect(self._request, self._generation)
        except Exception as error:
            self._end(self._writer.unfinished("failed", as_api_error(error)))
            return
        self._end(await written([choice], lambda: self._writer.whole(choice, self._generation)))

    def _end(self, response: dict[str, Any]) -> None:
        self._stored.response = response
        self._count_anew()

    def _count_anew(self) -> None:
        if self._store is not None:
            self._store.changed(self._stored)
