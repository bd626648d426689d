"""`Completion`: gathers the news of one sample into the dict that `LLMEngine` returns."""

from __future__ import annotations

from typing import Any

from atom_core.messages import CompletionLogprobs, RequestOutput


class Completion:
    """What one sample has produced so far."""

    def __init__(self, request_id: str, index: int) -> None:
        self._request_id = request_id
        self._index = index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[CompletionLogprobs] | None = None
        self._prompt_logprobs: list[CompletionLogprobs] | None = None
        self._last: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        """Take news, in order."""
        self._texts.append(output.text_delta)
        self._token_ids += output.output_tokens
        if output.logprobs is not None:
            self._logprobs = (self._logprobs or []) + output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or []) + output.prompt_logprobs
        self._last = output

    def as_dict(self) -> dict[str, Any]:
        """The finished sample (see `LLMEngine.generate`)."""
        last = self._last
        if last is None:
            raise RuntimeError("as_dict() before any news of the sample")
        after_first = last.num_output_tokens - 1
        also: dict[str, Any] = {} if last.embedding is None else {"embedding": last.embedding}
        if last.kv_transfer_params is not None:
            also["kv_transfer_params"] = last.kv_transfer_params
        return also | {
            "request_id": self._request_id,
            "index": self._index,
            "text": "".join(self._texts),
            "token_ids": self._token_ids,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
            "num_tokens_input": last.num_prompt_tokens,
            "num_tokens_output": last.num_output_tokens,
            "num_cached_tokens": last.num_cached_tokens,
            "num_draft_tokens": last.num_draft_tokens,
            "num_accepted_tokens": last.num_accepted_tokens,
            "latency": last.latency,
            "ttft": last.ttft,
            "tpot": (last.latency - last.ttft) / after_first if after_first > 0 else 0.0,
            "logprobs": self._logprobs,
            "prompt_logprobs": self._prompt_logprobs,
            "error": last.error,
        }
