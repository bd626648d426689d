"""`OutputProcessor`: the scheduler's news become text; stop strings are found here."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cached_property

from atom_core.messages import (
    CompletionLogprobs,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from atom_core.tokenization import IncrementalDetokenizer, StopStringMatcher, Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessedOutputs:
    """News for callers, and the ids of samples that ended here, as by a stop string: the engine must abort them."""

    outputs: list[RequestOutput]
    stopped_request_ids: list[str]


class OutputProcessor:
    """Keeps the text state of every open sample.

    Args:
        tokenizer: None gives outputs without text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._samples: dict[str, _Sample] = {}
        # The open samples of each prompt, so that ending a prompt does not search all that are open.
        self._by_caller: dict[str, dict[str, None]] = {}

    def add(self, request: EngineRequest) -> None:
        """Open a sample; its news are turned into text from now on."""
        self._samples[request.request_id] = _Sample(request, self._tokenizer)
        self._by_caller.setdefault(request.caller_id, {})[request.request_id] = None

    @property
    def num_open(self) -> int:
        """Samples that have not finished."""
        return len(self._samples)

    def open_ids(self, caller_id: str) -> list[str]:
        """Ids of the open samples of a prompt."""
        return list(self._by_caller.get(caller_id, ()))

    def close(self, caller_id: str) -> list[str]:
        """Forget the open samples of a prompt, and return their ids."""
        ids = self.open_ids(caller_id)
        for key in ids:
            self._forget(key)
        return ids

    def process(self, news: list[EngineOutput]) -> ProcessedOutputs:
        """Turn the news of one step into text; news of samples that are no longer open are dropped.

        A sample whose news cannot be turned into text ends with an error; the others go on.
        """
        outputs: list[RequestOutput] = []
        stopped: list[str] = []
        now = time.monotonic()
        for item in news:
            sample = self._samples.get(item.request_id)
            if sample is None:
                continue
            try:
                output = sample.take(item, now)
            except Exception as error:
                logger.exception("the news of request %s could not be turned into text", item.request_id)
                output = sample.failure(f"its news could not be turned into text: {type(error).__name__}: {error}", now)
            outputs.append(output)
            if output.finished:
                self._forget(item.request_id)
                if item.finish_reason is None:
                    stopped.append(item.request_id)
        return ProcessedOutputs(outputs, stopped)

    def finish_all(self, reason: FinishReason, error: str | None = None) -> list[RequestOutput]:
        """End every open sample, e.g. with "error" when the engine died."""
        ids = list(self._samples)
        return self.process(
            [EngineOutput(request_id, [], finish_reason=reason, error=error) for request_id in ids]
        ).outputs

    def _forget(self, request_id: str) -> None:
        caller_id = self._samples.pop(request_id).caller_id
        siblings = self._by_caller[caller_id]
        del siblings[request_id]
        if not siblings:
            del self._by_caller[caller_id]


class _Sample:
    """One sample's text so far."""

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer | None) -> None:
        params = request.sampling_params
        self.caller_id = request.caller_id
        self._request = request
        self._tokenizer = tokenizer
        self._matcher = (
            StopStringMatcher(params.stop_strings, include_stop_string=params.include_stop_str_in_output)
            if params.stop_strings
            else None
        )
        self._index = request.sample_index
        self._num_prompt_tokens = len(request.token_ids)
        self._keeps_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._arrival = request.arrival_time
        self._queued = 0.0
        self._ttft = 0.0
        self._num_tokens = 0
        self._num_cached_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0

    def take(self, news: EngineOutput, now: float) -> RequestOutput:
        """The output that `news` makes; `finished` without `news.finish_reason` means that a stop string was found."""
        if self._num_tokens == 0 and news.new_token_ids:
            self._ttft = now - self._arrival
        if news.started and not self._queued:
            self._queued = news.started - self._arrival
        self._num_cached_tokens = max(self._num_cached_tokens, news.num_cached_tokens)
        text, used = self._take_tokens(news)
        self._num_draft_tokens += news.num_draft_tokens
        self._num_accepted_tokens += min(news.num_accepted_tokens, used)
        reason, stop_reason = news.finish_reason, news.stop_reason
        if reason is not None and self._matched is None:
            text += self._flush()
        if (matched := self._matched) is not None:
            reason, stop_reason = "stop", matched
        # Python makes a dict of more than fifteen names, so the first fields are given by their places.
        return RequestOutput(
            self.caller_id,
            news.new_token_ids[:used],
            reason is not None,
            reason,
            self._index,
            text,
            stop_reason,
            self._with_texts(news.logprobs, used),
            self._with_texts(news.prompt_logprobs),
            self._num_prompt_tokens,
            self._num_cached_tokens,
            self._num_tokens,
            queued=self._queued,
            ttft=self._ttft,
            latency=now - self._arrival,
            error=news.error,
            embedding=news.embedding,
            error_code=news.error_code,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted_tokens,
            kv_transfer_params=news.kv_transfer_params,
        )

    def failure(self, error: str, now: float) -> RequestOutput:
        """The last output of a sample that cannot go on."""
        return RequestOutput(
            request_id=self.caller_id,
            output_tokens=[],
            finished=True,
            finish_reason="error",
            index=self._index,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self._num_tokens,
            queued=self._queued,
            ttft=self._ttft,
            latency=now - self._arrival,
            error=error,
        )

    @property
    def _matched(self) -> str | None:
        """The stop string that ended the text."""
        return None if self._matcher is None else self._matcher.matched

    @cached_property
    def _detokenizer(self) -> IncrementalDetokenizer | None:
        """Made with the first news: thousands of samples may be opened at once, and not all get to run."""
        if self._tokenizer is None:
            return None
        params = self._request.sampling_params
        return IncrementalDetokenizer(
            self._tokenizer,
            self._request.token_ids,
            skip_special_tokens=params.skip_special_tokens,
            kept_special_token_ids=params.kept_special_token_ids or (),
        )

    def _take_tokens(self, news: EngineOutput) -> tuple[str, int]:
        """Text of the new tokens up to a stop string, and how many tokens that took."""
        if not (token_ids := news.new_token_ids):
            return "", 0
        detokenizer, matcher = self._detokenizer, self._matcher
        ends_at_stop_token = news.finish_reason == "stop" and not self._keeps_stop
        text = ""
        for used, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            if detokenizer is None or (ends_at_stop_token and used == len(token_ids)):
                continue
            piece = detokenizer.add(token_id)
            if matcher is None:
                text += piece
            elif self._num_tokens <= self._min_tokens:
                text += matcher.skip(piece)
            else:
                text += matcher.add(piece)
                if matcher.matched is not None:
                    return text, used
        return text, len(token_ids)

    def _flush(self) -> str:
        """Text still held when a sample ends; where nothing was written no detokenizer is made."""
        if not self._num_tokens or self._detokenizer is None:
            return ""
        text = self._detokenizer.flush()
        if self._matcher is None:
            return text
        text = self._matcher.add(text)
        return text if self._matched is not None else text + self._matcher.flush()

    def _with_texts(
        self, entries: list[TokenLogprobs] | None, most: int | None = None
    ) -> list[CompletionLogprobs] | None:
        """The first `most` entries, or all of them, with the texts of their tokens."""
        return None if entries is None else [self._with_text(entry) for entry in entries[:most]]

    def _with_text(self, entry: TokenLogprobs) -> CompletionLogprobs:
        text = self._tokenizer.id_to_text if self._tokenizer is not None else lambda token_id: ""
        top = tuple((token_id, text(token_id), logprob) for token_id, logprob in entry.top)
        return CompletionLogprobs(entry.token_id, text(entry.token_id), entry.logprob, entry.rank, top)
