"""`LocalRequests`: the requests of an `LLMEngine`, from when they are queued until somebody takes what finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from atom_core.engine.outputs.completion import Completion
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.messages import EngineOutput, EngineRequest, RequestOutput
from atom_core.tokenization import Tokenizer

StreamCallback = Callable[[RequestOutput], Any]


class LocalRequests:
    """Turns the engine's news into finished samples, and calls back.

    Args:
        tokenizer: None gives outputs without text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._outputs = OutputProcessor(tokenizer)
        # The samples of each prompt that have not finished, by their indices.
        self._open: dict[str, dict[int, Completion]] = {}
        self._callbacks: dict[str, StreamCallback] = {}
        # News that callbacks have not got yet, because an earlier callback raised.
        self._untold: deque[tuple[StreamCallback, RequestOutput]] = deque()
        self._finished: list[dict[str, Any]] = []

    def add(self, sample: EngineRequest, callback: StreamCallback | None) -> None:
        """Open a sample."""
        completion = Completion(sample.caller_id, sample.sample_index)
        self._open.setdefault(sample.caller_id, {})[sample.sample_index] = completion
        if callback is not None:
            self._callbacks[sample.caller_id] = callback
        self._outputs.add(sample)

    def take(self, news: list[EngineOutput]) -> list[str]:
        """Take in news; returns the ids of samples that ended here, which the engine must abort."""
        processed = self._outputs.process(news)
        for output in processed.outputs:
            samples = self._open[output.request_id]
            samples[output.index].add(output)
            callback = self._callbacks.get(output.request_id)
            if callback is not None:
                self._untold.append((callback, output))
            if output.finished:
                self._finished.append(samples.pop(output.index).as_dict())
                if not samples:
                    del self._open[output.request_id]
                    self._callbacks.pop(output.request_id, None)
        return processed.stopped_request_ids

    def call_back(self) -> None:
        """Tell callbacks their news. One may raise: the others' news stay for the next call."""
        while self._untold:
            callback, output = self._untold.popleft()
            callback(output)

    def take_finished(self, request_ids: Container[str] | None = None) -> list[dict[str, Any]]:
        """The finished samples of these requests, or all of them."""
        finished, self._finished = self._finished, []
        if request_ids is None:
            return finished
        self._finished = [sample for sample in finished if sample["request_id"] not in request_ids]
        return [sample for sample in finished if sample["request_id"] in request_ids]

    def drop(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests: nothing more comes of them. Returns the ids of their open samples."""
        dropped = set(request_ids)
        sample_ids = []
        for request_id in dropped:
            sample_ids += self._outputs.close(request_id)
            self._callbacks.pop(request_id, None)
            self._open.pop(request_id, None)
        self.take_finished(dropped)
        self._untold = deque(entry for entry in self._untold if entry[1].request_id not in dropped)
        return sample_ids

    @property
    def has_open(self) -> bool:
        """Whether a sample has not finished."""
        return bool(self._open)

    @property
    def has_untold(self) -> bool:
        """Whether callbacks have news to get."""
        return bool(self._untold)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open, finished or to be told."""
        return not (self._open or self._finished or self._untold)
