"""`FetcherBeside`: a fetcher in an event loop of its own, in a thread: what servers send holds up nobody's answers."""

from __future__ import annotations

import asyncio
import threading

from atom_server.pictures.fetching.fetcher import Fetcher


class FetcherBeside:
    """Fetches for other event loops. The thread begins with the first file.

    Args:
        fetcher: does it.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def fetch(self, url: str) -> bytes:
        """As `Fetcher.fetch`; it ends where this is cancelled."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._fetcher.fetch(url), self._running()))

    def close(self) -> None:
        """End the thread; what is being fetched is let go."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="fetching", daemon=True).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
