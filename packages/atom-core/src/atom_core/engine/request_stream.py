"""`RequestStream`: the news of one request, for `async for`. Torch-free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from atom_core.messages import RequestOutput


class RequestStream:
    """An async iterator of `RequestOutput` that ends when every sample has finished.

    Closing it early aborts the request, and so does dropping it.

    Attributes:
        request_id: of the caller's request.
    """

    def __init__(self, request_id: str, num_samples: int, on_close: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._num_open = num_samples
        self._on_close = on_close
        self._outputs: deque[RequestOutput] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def put(self, output: RequestOutput) -> bool:
        """Add news; True if they were the last."""
        self._outputs.append(output)
        self._num_open -= output.finished
        self._arrived.set()
        return self._num_open == 0

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._outputs:
            if self._closed or self._num_open == 0:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._outputs.popleft()

    async def aclose(self) -> None:
        """End the iteration; samples that are still open are aborted."""
        self._close()
        self._arrived.set()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outputs.clear()
            if self._num_open:
                self._on_close(self.request_id)

    def __del__(self) -> None:
        if not self._closed and self._num_open and not self._loop.is_closed():
            # May run in any thread; the abort belongs to the event loop's.
            self._loop.call_soon_threadsafe(self._on_close, self.request_id)
