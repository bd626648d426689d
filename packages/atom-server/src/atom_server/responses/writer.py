"""`ResponseWriter`: the objects and events of the Responses API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from atom_core import CompletionLogprobs, Tokenizer
from atom_server.answers.logprobs import chat_logprobs
from atom_server.answers.streaming import named_event
from atom_server.errors import APIError
from atom_server.generation.collect import Collected
from atom_server.generation.generation import Generation
from atom_server.generation.reply_reader import ReplyReader
from atom_server.output.parts import Part
from atom_server.responses.output import OutputWriter
from atom_server.schemas.create_response import CreateResponseRequest


class ResponseWriter:
    """Writes one response, whole or as a stream of events.

    Attributes:
        id: the response's id, e.g. "resp_5f2c...".
    """

    def __init__(
        self, body: CreateResponseRequest, model: str, reader: ReplyReader, tokenizer: Tokenizer | None
    ) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._body = body
        self._model = model
        self._reader = reader
        self._tokenizer = tokenizer
        self._output = OutputWriter(self._event, reader.call_ids)
        self._logprobs: list[dict[str, Any]] = []
        self._created = int(time.time())
        self._num_events = 0

    def unfinished(self, status: str, error: APIError | None = None) -> dict[str, Any]:
        """The response without output: "queued", "in_progress", "cancelled" or "failed"."""
        return self._response(status, [], error=error)

    def whole(self, choice: Collected, generation: Generation) -> dict[str, Any]:
        """The finished response: "completed", or "incomplete" where a limit ended it."""
        position = 0
        for text, num_tokens in choice.pieces:
            self.take(text, num_tokens, choice.logprobs[position : position + num_tokens])
            position += num_tokens
        return self.finish(choice.finish_reason, generation)[1]

    def begin(self) -> bytes:
        """The first events of a stream."""
        started = self.unfinished("in_progress")
        return self._event("response.created", response=started) + self._event("response.in_progress", response=started)

    def take(self, text: str, num_tokens: int, logprobs: Iterable[CompletionLogprobs]) -> bytes:
        """The events of some tokens."""
        self._logprobs += self._told(logprobs)
        return self._write(self._reader.take(text, num_tokens))

    def finish(self, finish_reason: str | None, generation: Generation) -> tuple[bytes, dict[str, Any]]:
        """The last events but one, and the finished response."""
        status = "incomplete" if finish_reason == "length" else "completed"
        data = self._write(self._reader.take("", finished=True)) + self._output.end(status, self._logprobs)
        generation.num_reasoning_tokens = self._reader.num_reasoning_tokens
        return data, self._response(status, self._output.items, generation=generation)

    def ended(self, response: dict[str, Any]) -> bytes:
        """The last event of a stream, which has the response as it ended."""
        return self._event(f"response.{response['status']}", response=response)

    def _write(self, parts: list[Part]) -> bytes:
        """Tokens whose text is held back wait for it with their log-probabilities; only the answer's are told."""
        logprobs: list[dict[str, Any]] = []
        if parts:
            logprobs, self._logprobs = self._logprobs, []
        return self._output.take(parts, logprobs)

    def _told(self, entries: Iterable[CompletionLogprobs]) -> list[dict[str, Any]]:
        if self._body.num_logprobs is None:
            return []
        return msgspec.to_builtins(chat_logprobs(list(entries), self._tokenizer, self._body.num_logprobs).content)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        generation: Generation | None = None,
        error: APIError | None = None,
    ) -> dict[str, Any]:
        body = self._body
        choice = body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": body.background,
            "error": None if error is None else {"code": _error_code(error), "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {} if body.reasoning is None else body.reasoning.model_dump(),
            "store": body.store,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs,
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": None if generation is None else _usage(generation),
            "user": body.user,
        }


def _usage(generation: Generation) -> dict[str, Any]:
    usage = generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _error_code(error: APIError) -> str:
    """The code that OpenAI has for a response that failed so."""
    return "invalid_prompt" if error.status < 500 else "server_error"
