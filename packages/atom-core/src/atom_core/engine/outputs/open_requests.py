"""`OpenRequests`: the requests that have not ended, their text so far, and the streams that wait for it. Torch-free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from weakref import ref

from atom_core.engine.inputs.queue_limits import Load
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.engine.outputs.request_stream import RequestStream, Unread
from atom_core.messages import EngineOutput, FinishReason, RequestOutput, Submission
from atom_core.tokenization import Tokenizer

# About 150 bytes for each token or log-probability that waits for its reader: 150 MB.
MAX_UNREAD = 2**20


class OpenRequests:
    """Hands the engine's news to the streams of those who asked.

    Args:
        tokenizer: None gives outputs without text.
        on_abort: called with the ids of samples that nobody waits for any more; the engine must drop them.
        max_unread: tokens and log-probabilities that may wait for their readers, over all streams. Beyond that, the
            stream with most of them ends with an error.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        on_abort: Callable[[list[str]], None],
        *,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self._unread = Unread()
        self._max_unread = max_unread
        self._outputs = OutputProcessor(tokenizer)
        self._on_abort = on_abort
        # By the id of each prompt. Whoever asked holds the stream: dropping it ends the request.
        self._streams: dict[str, ref[RequestStream]] = {}
        # By the id of each prompt too: its tenant, samples and tokens, until all of its stream has ended.
        self._loads: dict[str, tuple[str, int, int]] = {}
        self._num_tokens = 0
        self._samples_of: Counter[str] = Counter()
        self._tokens_of: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_samples(self) -> int:
        """Samples that have not finished."""
        return self._outputs.num_open

    @property
    def load(self) -> Load:
        """The load of all open requests."""
        return Load(num_samples=self.num_samples, num_tokens=self._num_tokens)

    def load_of(self, tenant: str) -> Load:
        """The load of one tenant. A request counts whole until all of its samples have ended."""
        return Load(num_samples=self._samples_of[tenant], num_tokens=self._tokens_of[tenant])

    def add(self, submission: Submission, engines: Sequence[int] = ()) -> RequestStream:
        """The stream for all samples of a submission; `engines` has the rank of the one that gets each prompt."""
        for sample in submission.samples():
            self._outputs.add(sample)
        request_ids = [prompt.request_id for prompt in submission.prompts]
        stream = RequestStream(request_ids, submission.num_samples, self._close, self._unread, engines=engines)
        self._streams |= dict.fromkeys(request_ids, ref(stream))
        for prompt in submission.prompts:
            load = (submission.tenant, submission.sampling_params.n, len(prompt.token_ids))
            self._loads[prompt.request_id] = load
            self._count(*load)
        if request_ids:
            self._idle.clear()
        return stream

    def take(self, news: list[EngineOutput]) -> None:
        """Turn news of samples into text, and wake whoever waits for it."""
        processed = self._outputs.process(news)
        if processed.stopped_request_ids:
            self._on_abort(processed.stopped_request_ids)
        self._deliver(processed.outputs)

    def open_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ids of the samples of these prompts that have not finished."""
        return [sample_id for request_id in request_ids for sample_id in self._outputs.open_ids(request_id)]

    def all_ids(self) -> list[str]:
        """Ids of all samples that have not finished."""
        return self.open_ids(list(self._streams))

    def end_all(self, reason: FinishReason) -> None:
        """Give every open sample its last news."""
        self._deliver(self._outputs.finish_all(reason))

    async def wait_until_idle(self) -> None:
        """Return when nothing is open."""
        await self._idle.wait()

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            found = self._streams.get(output.request_id)
            stream = None if found is None else found()
            if stream is not None and stream.put(output):
                self._drop(stream.request_ids)
            if self._unread.size > self._max_unread:
                self._end_slowest()

    def _end_slowest(self) -> None:
        slowest = max(self._unread.streams, key=lambda stream: stream.num_unread)
        slowest.give_up(f"{slowest.num_unread} tokens and log-probabilities of the answer were not read in time")

    def _close(self, request_ids: Sequence[str]) -> None:
        """A stream was closed before its end."""
        self._drop(request_ids)
        if open_ids := [sample_id for request_id in request_ids for sample_id in self._outputs.close(request_id)]:
            self._on_abort(open_ids)

    def _drop(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._streams.pop(request_id, None)
            if (load := self._loads.pop(request_id, None)) is not None:
                tenant, num_samples, num_tokens = load
                self._count(tenant, -num_samples, -num_tokens)
        if not self._streams:
            self._idle.set()

    def _count(self, tenant: str, num_samples: int, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._samples_of[tenant] += num_samples
        self._tokens_of[tenant] += num_tokens
        if not self._samples_of[tenant]:
            del self._samples_of[tenant], self._tokens_of[tenant]
