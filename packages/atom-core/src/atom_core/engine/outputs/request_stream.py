"""`RequestStream`: the news of prompts that were submitted together, for `async for`. Torch-free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from weakref import WeakSet

from atom_core.messages import RequestOutput

# After so many news in a row, others on the event loop get their turn. Hundreds of streams may be as far behind.
MAX_NEWS_IN_A_ROW = 4


class Unread:
    """Tokens and log-probabilities that wait to be read, over all open streams."""

    def __init__(self) -> None:
        self.size = 0
        self.streams: WeakSet[RequestStream] = WeakSet()


class RequestStream:
    """An async iterator of `RequestOutput` that ends when every sample of every prompt has finished.

    Closing it early aborts what is still open, and so does dropping it.

    Attributes:
        request_ids: the ids of the prompts, in order; `RequestOutput.request_id` is one of them.
        engines: the rank of the engine that each prompt went to, in the same order.
        num_unread: tokens and log-probabilities that wait to be read.
    """

    def __init__(
        self,
        request_ids: Sequence[str],
        num_samples: int,
        on_close: Callable[[Sequence[str]], None],
        unread: Unread | None = None,
        *,
        engines: Sequence[int] = (),
    ) -> None:
        self.num_unread = 0
        self._unread = unread or Unread()
        self._unread.streams.add(self)
        self.request_ids, self.engines = request_ids, engines
        self._num_open = num_samples
        self._on_close = on_close
        self._outputs: deque[RequestOutput] = deque()
        self._num_in_a_row = 0
        self._loop = asyncio.get_running_loop()
        # What the reader waits for where nothing is there; an `asyncio.Event` would cost as much as all else here.
        self._arrival: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, output: RequestOutput) -> bool:
        """Add news; True if they were the last."""
        self._outputs.append(output)
        self._count(_size(output))
        self._num_open -= output.finished
        self._wake()
        return self._num_open == 0

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not await self._has_next():
            raise StopAsyncIteration
        return self._pop()

    async def together(self) -> list[RequestOutput]:
        """The next news and those that are there with it, a few at most; none after the last."""
        if not await self._has_next():
            return []
        return [self._pop() for _ in range(min(len(self._outputs), MAX_NEWS_IN_A_ROW - self._num_in_a_row))]

    def give_up(self, error: str) -> None:
        """Drop unread news, abort open samples, and leave an error in their place."""
        self._outputs.clear()
        self._count(-self.num_unread)
        self._num_open = 0
        failure = RequestOutput(
            self.request_ids[0], [], finished=True, finish_reason="error", error=error, error_code="slow_reader"
        )
        self._outputs.append(failure)
        self._count(_size(failure))
        self._on_close(self.request_ids)
        self._wake()

    async def aclose(self) -> None:
        """End the iteration; samples that are still open are aborted."""
        if not self._closed:
            self._closed = True
            self._outputs.clear()
            self._count(-self.num_unread)
            if self._num_open:
                self._on_close(self.request_ids)
        self._wake()

    async def _has_next(self) -> bool:
        """Wait for news; False if none will come."""
        if self._outputs and self._num_in_a_row >= MAX_NEWS_IN_A_ROW:
            self._num_in_a_row = 0
            await asyncio.sleep(0)
        while not self._outputs:
            if self._closed or self._num_open == 0:
                return False
            self._num_in_a_row = 0
            self._arrival = self._loop.create_future()
            await self._arrival
        return True

    def _pop(self) -> RequestOutput:
        self._num_in_a_row += 1
        output = self._outputs.popleft()
        self._count(-_size(output))
        return output

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _count(self, size: int) -> None:
        self.num_unread += size
        self._unread.size += size

    def __del__(self) -> None:
        self._unread.size -= self.num_unread
        if not self._closed and self._num_open and not self._loop.is_closed():
            # May run in any thread; the abort belongs to the event loop's.
            self._loop.call_soon_threadsafe(self._on_close, self.request_ids)


def _size(output: RequestOutput) -> int:
    """Tokens and log-probabilities of news."""
    logprobs, prompt_logprobs = output.logprobs, output.prompt_logprobs
    size = 1 + len(output.output_tokens)
    if logprobs is prompt_logprobs is None:
        return size  # most news
    lists = (logprobs, prompt_logprobs)
    return size + sum(len(entries) * (1 + len(entries[0].top)) for entries in lists if entries)
