"""Answers a batch through the routes of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from atom_server.batches.journal import Answer
from atom_server.batches.lines import BatchLine

Ask = Callable[[BatchLine], Awaitable[Answer]]
"""Sends a request to its route."""
Keep = Callable[[BatchLine, Answer], object]
"""Writes an answer; called in threads."""

# Busy, or without an engine for a moment: asked again.
_LATER = (429, 503)
_LATER_SECONDS = 0.25
# While a line of so many bytes is answered, no other one is read.
_LARGE_BYTES = 2**22


async def answer_all(
    lines: Iterator[BatchLine], ask: Ask, keep: Keep, *, at_once: int, places: asyncio.Semaphore | None = None
) -> None:
    """Ask for every line, so many at once.

    Args:
        lines: read in threads, one after the other.
        ask: raises what ends the batch, such as the death of the engine.
        places: shared with other batches: each line that is read or asked takes one.

    Raises:
        Exception: what `lines`, `ask` or `keep` raised; answers that had come are kept.
    """
    reading = asyncio.Lock()
    places = places or asyncio.Semaphore(at_once)

    async def finish(line: BatchLine) -> None:
        while (answer := await ask(line)).status in _LATER:
            await asyncio.sleep(max(_LATER_SECONDS, answer.retry_after))
        await asyncio.to_thread(keep, line, answer)

    async def work() -> None:
        while True:
            async with places:
                async with reading:
                    line = await asyncio.to_thread(next, lines, None)
                    if line is not None and line.num_bytes > _LARGE_BYTES:
                        await finish(line)
                        continue
                if line is None:
                    return
                await finish(line)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(work())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
