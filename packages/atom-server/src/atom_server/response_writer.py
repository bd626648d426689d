"""`ResponseWriter`: the objects and events of the Responses API."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from atom_server.errors import APIError, as_api_error
from atom_server.generation import Generation
from atom_server.schemas.create_response import CreateResponseRequest
from atom_server.streaming import named_event


class ResponseWriter:
    """Writes one response, whole or as a stream of events.

    Attributes:
        id: of the response, e.g. "resp_5f2c...".
    """

    def __init__(self, body: CreateResponseRequest, model: str) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._body = body
        self._model = model
        self._created = int(time.time())
        self._num_events = 0

    def unfinished(self, status: str, error: APIError | None = None) -> dict[str, Any]:
        """The response without output: "queued", "in_progress", "cancelled" or "failed"."""
        return self._response(status, [], error=error)

    def finished(self, text: str, finish_reason: str | None, generation: Generation) -> dict[str, Any]:
        """The response with its text: "completed", or "incomplete" where a limit ended it."""
        status = "incomplete" if finish_reason == "length" else "completed"
        return self._response(status, [self._item(status, text)], generation=generation)

    async def events(self, generation: Generation, on_end: Any) -> AsyncGenerator[bytes, None]:
        """Every event of a stream; `on_end` is called with the finished response before the last one."""
        started = self.unfinished("in_progress")
        yield self._event("response.created", response=started) + self._event("response.in_progress", response=started)
        where = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        yield (
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress"))
            + self._event("response.content_part.added", **where, part=_part(""))
        )
        texts: list[str] = []
        reason: str | None = None
        try:
            async for _, output in generation.outputs():
                if output.text_delta:
                    texts.append(output.text_delta)
                    yield self._event("response.output_text.delta", **where, delta=output.text_delta, logprobs=[])
                reason = output.finish_reason
        except Exception as error:
            failed = self.unfinished("failed", as_api_error(error))
            yield self._event("response.failed", response=failed)
            return
        text = "".join(texts)
        response = self.finished(text, reason, generation)
        on_end(response)
        yield (
            self._event("response.output_text.done", **where, text=text, logprobs=[])
            + self._event("response.content_part.done", **where, part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=response["output"][0])
            + self._event(f"response.{response['status']}", response=response)
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def _item(self, status: str, text: str | None = None) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {"type": "message", "id": self._item_id, "status": status, "role": "assistant", "content": content}

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        generation: Generation | None = None,
        error: APIError | None = None,
    ) -> dict[str, Any]:
        body = self._body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": body.background,
            "error": None if error is None else {"code": "server_error", "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "store": body.store,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice,
            "tools": [],
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": None if generation is None else _usage(generation),
            "user": body.user,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(generation: Generation) -> dict[str, Any]:
    usage = generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
