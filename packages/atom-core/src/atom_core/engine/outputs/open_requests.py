"""`OpenRequests`: the requests that have not ended, their text so far, and the streams that wait for it. Torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import ref

from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.engine.outputs.request_stream import RequestStream
from atom_core.messages import EngineOutput, FinishReason, RequestOutput, Submission
from atom_core.tokenization import Tokenizer


class OpenRequests:
    """Hands the engine's news to the streams of those who asked.

    Args:
        tokenizer: None gives outputs without text.
        on_abort: called with the ids of samples that nobody waits for any more; the engine must drop them.
    """

    def __init__(self, tokenizer: Tokenizer | None, on_abort: Callable[[list[str]], None]) -> None:
        self._outputs = OutputProcessor(tokenizer)
        self._on_abort = on_abort
        # By the id of each prompt. Whoever asked holds the stream: dropping it ends the request.
        self._streams: dict[str, ref[RequestStream]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_samples(self) -> int:
        """Samples that have not finished."""
        return self._outputs.num_open

    def add(self, submission: Submission) -> RequestStream:
        """The stream for all samples of a submission."""
        for sample in submission.samples():
            self._outputs.add(sample)
        request_ids = [prompt.request_id for prompt in submission.prompts]
        stream = RequestStream(request_ids, submission.num_samples, self._close)
        self._streams |= dict.fromkeys(request_ids, ref(stream))
        if request_ids:
            self._idle.clear()
        return stream

    def take(self, news: list[EngineOutput]) -> None:
        """Turn a step's news into text, and wake whoever waits for it."""
        processed = self._outputs.process(news)
        if processed.stopped_request_ids:
            self._on_abort(processed.stopped_request_ids)
        self._deliver(processed.outputs)

    def open_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ids of the samples of these prompts that have not finished."""
        return [sample_id for request_id in request_ids for sample_id in self._outputs.open_ids(request_id)]

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """Give every open sample its last news."""
        self._deliver(self._outputs.finish_all(reason, error))

    async def wait_until_idle(self) -> None:
        """Return when nothing is open."""
        await self._idle.wait()

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            found = self._streams.get(output.request_id)
            stream = None if found is None else found()
            if stream is not None and stream.put(output):
                self._drop(stream.request_ids)

    def _close(self, request_ids: Sequence[str]) -> None:
        """A stream was closed before its end."""
        self._drop(request_ids)
        if open_ids := [sample_id for request_id in request_ids for sample_id in self._outputs.close(request_id)]:
            self._on_abort(open_ids)

    def _drop(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()
