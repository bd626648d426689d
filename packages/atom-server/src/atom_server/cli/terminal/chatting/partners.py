"""Who answers in a conversation: an engine of one's own, or any server that speaks OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import httpx

from atom_core import AsyncEngine, SamplingParams
from atom_server.bench.event_lines import EventLines
from atom_server.cli.terminal.engine_chats import EngineChats
from atom_server.cli.terminal.engine_text import print_stream, speed

Message = dict[str, Any]
Show = Callable[[str], object]
"""Shows a piece of text."""

# A server that says nothing for so long is told to have gone; prompts may take their time.
_SILENCE_SECONDS = 600.0


class PartnerError(RuntimeError):
    """There is no answer; the message is one line."""


class Partner(Protocol):
    """Answers the messages of a conversation."""

    async def answer(self, messages: Sequence[Message], params: SamplingParams, show: Show) -> tuple[str, str]:
        """Show the answer as it comes; all of it, and a line on how it went.

        Raises:
            PartnerError, APIError, InvalidRequestError: there is none.
        """
        ...


class EnginePartner:
    """The engine that the command started."""

    def __init__(self, engine: AsyncEngine, chats: EngineChats) -> None:
        self._engine, self._chats = engine, chats

    async def answer(self, messages: Sequence[Message], params: SamplingParams, show: Show) -> tuple[str, str]:
        """See `Partner`."""
        prompt = await self._chats.prompt(messages)
        text, last = await print_stream(self._engine, prompt, params, show)
        return text, speed(last)


class ServerPartner:
    """A server.

    Args:
        client: has the address and the key.
        model: the name that requests carry; None asks the server for its first one.
    """

    def __init__(self, client: httpx.AsyncClient, model: str | None) -> None:
        self._client, self._model = client, model

    async def answer(self, messages: Sequence[Message], params: SamplingParams, show: Show) -> tuple[str, str]:
        """See `Partner`."""
        try:
            model = self._model or await self._first_model()
            return await self._stream(_body(messages, params, model), show)
        except httpx.HTTPError as error:
            raise PartnerError(f"{self._client.base_url} does not answer: {error or type(error).__name__}") from error

    async def _first_model(self) -> str:
        answer = await self._client.get("/v1/models")
        _check(answer, answer.content)
        self._model = str(answer.json()["data"][0]["id"])
        return self._model

    async def _stream(self, body: Message, show: Show) -> tuple[str, str]:
        lines, parts, started, first, num_tokens = EventLines(), [], time.perf_counter(), None, 0
        async with self._client.stream("POST", "/v1/chat/completions", json=body, timeout=_SILENCE_SECONDS) as answer:
            if answer.is_error:
                _check(answer, await answer.aread())
            async for data in answer.aiter_bytes():
                for event in map(json.loads, lines.feed(data)):
                    if "error" in event:
                        raise PartnerError(_message_of(event))
                    num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
                    text = "".join((choice["delta"].get("content") or "") for choice in event["choices"])
                    if text:
                        first = first or time.perf_counter()
                        parts.append(text)
                        show(text)
        took, until = time.perf_counter() - started, (first or time.perf_counter()) - started
        return "".join(parts), f"[{num_tokens} tokens, first after {until * 1e3:.0f} ms, in {took:.1f} s]"


def _body(messages: Sequence[Message], params: SamplingParams, model: str) -> Message:
    body = {"model": model, "messages": list(messages), "stream": True, "stream_options": {"include_usage": True}}
    body |= {"temperature": params.temperature, "top_p": params.top_p}
    # Not every server knows these.
    optional = {
        "max_tokens": params.max_tokens,
        "seed": params.seed,
        "top_k": params.top_k if params.top_k > 0 else None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def _check(answer: httpx.Response, data: bytes) -> None:
    if answer.is_error:
        try:
            message = _message_of(json.loads(data))
        except ValueError:
            message = data[:200].decode(errors="replace")
        raise PartnerError(f"{answer.request.url} answers {answer.status_code}: {message}")


def _message_of(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
