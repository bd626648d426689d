"""`ResponseRun`: makes one response, while a client listens or in the background, for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from atom_server.answers.streaming import tell
from atom_server.answers.whole_answer import written
from atom_server.errors import APIError, as_api_error
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation
from atom_server.responses.event_log import EventLog
from atom_server.responses.events import ResponseEvents
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

    def events(self) -> ResponseEvents:
        """The stream's events; they can be read again once it has ended."""
        if self._store is not None:
            self._stored.events = EventLog()
        return self._events(self.keep)

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
            self._close()
            await self._generation.close()

    async def _finish(self) -> None:
        if self._stored.events is not None:
            await tell(self._generation, self._events(self._end), _unheard)
            self._generation.report(self._request.state.record)
            return
        try:
            [choice] = await collect(self._request, self._generation)
        except Exception as error:
            self._end(self._writer.unfinished("failed", as_api_error(error)))
            return
        self._end(await written([choice], lambda: self._writer.whole(choice, self._generation)))

    def _events(self, on_end: Callable[[dict[str, Any]], None]) -> ResponseEvents:
        log = self._stored.events
        return ResponseEvents(self._writer, self._generation, log, on_end=on_end, on_close=self._close)

    def _close(self) -> None:
        if self._stored.events is not None:
            self._stored.events.close()
        self._count_anew()

    def _end(self, response: dict[str, Any]) -> None:
        self._stored.response = response
        self._count_anew()

    def _count_anew(self) -> None:
        if self._store is not None:
            self._store.changed(self._stored)


async def _unheard(data: bytes, more: bool) -> None:
    """Nobody listens: the events are read from their log."""
