"""`OpenRequests`: the requests that have not ended, their text so far, and the streams that wait for it. Torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from atom_core.engine.errors import InvalidRequestError
from atom_core.engine.output_processor import OutputProcessor
from atom_core.engine.request_stream import RequestStream
from atom_core.messages import EngineOutput, EngineRequest, FinishReason, RequestOutput
from atom_core.tokenization import Tokenizer


class OpenRequests:
    """Hands the engine's news to the streams of those who asked.

    Args:
        tokenizer: None gives outputs without text.
        on_abort: called with the ids of requests that nobody waits for any more; the engine must drop them.
    """

    def __init__(self, tokenizer: Tokenizer | None, on_abort: Callable[[list[str]], None]) -> None:
        self._outputs = OutputProcessor(tokenizer)
        self._on_abort = on_abort
        self._streams: dict[str, RequestStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_samples(self) -> int:
        """Samples that have not finished."""
        return self._outputs.num_open

    def add(self, submitted: Sequence[list[EngineRequest]]) -> list[RequestStream]:
        """A stream for the samples of each of several requests.

        Raises:
            InvalidRequestError: an id is in use; none is added.
        """
        by_id: dict[str, list[EngineRequest]] = {}
        for samples in submitted:
            request_id = samples[0].parent_id or samples[0].request_id
            if request_id in self._streams or request_id in by_id:
                message = f"request id {request_id!r} is in use"
                raise InvalidRequestError(message, "request_id", "duplicate_request_id")
            by_id[request_id] = samples
        streams = {name: RequestStream(name, len(samples), self._close) for name, samples in by_id.items()}
        for sample in (sample for samples in submitted for sample in samples):
            self._outputs.add(sample)
        self._streams |= streams
        self._idle.clear()
        return list(streams.values())

    def take(self, news: list[EngineOutput]) -> None:
        """Turn a step's news into text, and wake whoever waits for it."""
        processed = self._outputs.process(news)
        if processed.stopped_request_ids:
            self._on_abort(processed.stopped_request_ids)
        self._deliver(processed.outputs)

    def open_ids(self, request_id: str) -> list[str]:
        """Ids of a request's samples that have not finished."""
        return self._outputs.open_ids(request_id)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """Give every open sample its last news."""
        self._deliver(self._outputs.finish_all(reason, error))

    async def wait_until_idle(self) -> None:
        """Return when nothing is open."""
        await self._idle.wait()

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and stream.put(output):
                self._drop(output.request_id)

    def _close(self, request_id: str) -> None:
        """A stream was closed before its end."""
        if self._drop(request_id) and (open_ids := self._outputs.close(request_id)):
            self._on_abort(open_ids)

    def _drop(self, request_id: str) -> bool:
        found = self._streams.pop(request_id, None) is not None
        if not self._streams:
            self._idle.set()
        return found
