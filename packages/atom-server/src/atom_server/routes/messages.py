"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages API, for text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_server.body import read_request
from atom_server.collect import collect
from atom_server.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation import Generation
from atom_server.prompts import PromptTokens, encode_messages
from atom_server.routes.openapi import described
from atom_server.schemas.chat import ChatCompletionRequest
from atom_server.schemas.messages import CountTokensRequest, MessagesRequest
from atom_server.state import ServerState, server_state
from atom_server.streaming import EventStream, named_event

router = APIRouter(tags=["messages"])


@router.post("/v1/messages", response_class=Response, openapi_extra=described(MessagesRequest))
async def messages(request: Request) -> Response:
    """The assistant's next turn in a conversation, whole or as server-sent events."""
    state = server_state(request)
    state.check_takes_requests()
    body, headers = await read_request(request, MessagesRequest, state.options.max_body_bytes)
    state.check_model(body.model)
    chat = body.to_chat()
    prompt = await _encode(state, chat)
    generation = await Generation.submit(request, chat, [prompt], chat.chat_sampling_params(), kind="msg")
    if body.stream:
        return EventStream(request, generation, _events(generation), headers=headers, end=b"", failure=_failure)
    [choice] = await until_disconnect(request, collect(request, generation))
    answer = _message(generation, [{"type": "text", "text": choice.text}])
    answer |= _ending(choice.finish_reason, choice.stop_reason)
    return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")


@router.post("/v1/messages/count_tokens", openapi_extra=described(CountTokensRequest))
async def count_tokens(request: Request) -> dict[str, int]:
    """How many tokens the prompt of a conversation has."""
    state = server_state(request)
    body, _ = await read_request(request, CountTokensRequest, state.options.max_body_bytes)
    state.check_model(body.model)
    prompt = await _encode(state, body.as_chat())
    return {"input_tokens": len(prompt.token_ids)}


async def _encode(state: ServerState, chat: ChatCompletionRequest) -> PromptTokens:
    return await encode_messages(state, chat.template_messages(), continue_final_message=chat.continue_final_message)


def _message(generation: Generation, content: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "id": generation.id,
        "type": "message",
        "role": "assistant",
        "model": generation.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(generation),
    }


def _usage(generation: Generation) -> dict[str, int]:
    """Anthropic's counts: input tokens are those that the cache did not have."""
    usage = generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _ending(finish_reason: str | None, stop_reason: int | str | None) -> dict[str, str | None]:
    if finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


async def _events(generation: Generation) -> AsyncGenerator[bytes, None]:
    started = False
    async for _, output in generation.outputs():
        data = b""
        if not started:
            # With the first token it is known what the cache had, and clients count from this event.
            started = True
            data += _event("message_start", message=_message(generation, []))
            data += _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        if output.text_delta:
            data += _event("content_block_delta", index=0, delta={"type": "text_delta", "text": output.text_delta})
        if output.finished:
            data += _event("content_block_stop", index=0)
            ending = _ending(output.finish_reason, output.stop_reason)
            data += _event("message_delta", delta=ending, usage=_usage(generation))
            data += _event("message_stop")
        if data:
            yield data


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def _failure(error: APIError) -> bytes:
    return b"event: error\ndata: " + error.message_body() + b"\n\n"
