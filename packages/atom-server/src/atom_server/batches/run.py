"""Answers a batch through the routes of a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from atom_server.batches.journal import Journal
from atom_server.batches.lines import BatchLine

Ask = Callable[[BatchLine], Awaitable[tuple[int, str, bytes]]]
"""Sends a request to its route: the status, the id of the request, and the body of the answer."""

# Busy, or without an engine for a moment: asked again.
_LATER = (429, 503)
_LATER_SECONDS = 0.25


async def answer_all(
    lines: Iterable[BatchLine], ask: Ask, journal: Journal, *, at_once: int, told: Callable[[], object]
) -> None:
    """Ask for every line that the journal has no answer to, so many at once.

    Args:
        ask: raises what ends the batch, such as the death of the engine.
        told: is called after each answer.

    Raises:
        Exception: what `ask` or the journal raised; answers that had come are in the journal.
    """
    waiting = (line for line in lines if line.custom_id not in journal.answered)

    async def work() -> None:
        for line in waiting:
            while (found := await ask(line))[0] in _LATER:
                await asyncio.sleep(_LATER_SECONDS)
            status, request_id, data = found
            journal.add(line.custom_id, _answer(status, request_id, data))
            told()

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _answer(status: int, request_id: str, data: bytes) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request_id, "body": json.loads(data)}
    return {"response": response, "error": None}
