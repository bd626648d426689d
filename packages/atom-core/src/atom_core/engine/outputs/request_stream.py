"""`RequestStream`: the news of prompts that were submitted together, for `async for`. Torch-free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from atom_core.messages import RequestOutput

# After so many news without waiting, others on the event loop get their turn.
MAX_NEWS_IN_A_ROW = 16


class RequestStream:
    """An async iterator of `RequestOutput` that ends when every sample of every prompt has finished.

    Closing it early aborts what is still open, and so does dropping it.

    Attributes:
        request_ids: of the prompts, in order; `RequestOutput.request_id` is one of them.
    """

    def __init__(self, request_ids: Sequence[str], num_samples: int, on_close: Callable[[Sequence[str]], None]) -> None:
        self.request_ids = request_ids
        self._num_open = num_samples
        self._on_close = on_close
        self._outputs: deque[RequestOutput] = deque()
        self._num_in_a_row = 0
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
        if self._num_in_a_row >= MAX_NEWS_IN_A_ROW:
            self._num_in_a_row = 0
            await asyncio.sleep(0)
        while not self._outputs:
            if self._closed or self._num_open == 0:
                raise StopAsyncIteration
            self._num_in_a_row = 0
            self._arrived.clear()
            await self._arrived.wait()
        self._num_in_a_row += 1
        return self._outputs.popleft()

    async def aclose(self) -> None:
        """End the iteration; samples that are still open are aborted."""
        if not self._closed:
            self._closed = True
            self._outputs.clear()
            if self._num_open:
                self._on_close(self.request_ids)
        self._arrived.set()

    def __del__(self) -> None:
        if not self._closed and self._num_open and not self._loop.is_closed():
            # May run in any thread; the abort belongs to the event loop's.
            self._loop.call_soon_threadsafe(self._on_close, self.request_ids)
