"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from atom_core import CompletionLogprobs, RequestOutput, Tokenizer
from atom_server.answers.logprobs import by_id, by_text, chat_logprobs, prompt_logprobs
from atom_server.answers.streaming import EventStream, EventWriter, event
from atom_server.answers.tool_messages import DeltaWriter, message_of
from atom_server.answers.whole_answer import encoded, packed
from atom_server.bodies.body import naming_ignored
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import Collected, collect
from atom_server.generation.generation import Generation, check_room
from atom_server.generation.reply_plan import ReplyPlan, encode_chat, plan_reply
from atom_server.generation.reply_reader import ReplyReader
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.plain_route import PlainRoute
from atom_server.schemas.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
)
from atom_server.schemas.chat import ChatCompletionRequest

router = APIRouter(tags=["chat"], route_class=PlainRoute)


@router.post("/v1/chat/completions", response_class=Response, openapi_extra=described(ChatCompletionRequest))
async def chat_completions(request: Request) -> Response:
    """The assistant's next turn in a conversation, whole or as server-sent events."""
    state, body, headers = await accepted(request, ChatCompletionRequest)
    _check(body)
    check_room(request, body)
    prompt = await encode_chat(request, body)
    plan = plan_reply(state, body, prompt)
    generation = await Generation.submit(request, body, [prompt], plan.params, kind="chatcmpl")
    headers = naming_ignored(headers, body.without_effect(plan.params))
    if body.stream:
        chunks = _Chunks(generation, body, state.engine.tokenizer, plan)
        return EventStream(request, generation, chunks, headers=headers)
    collected = await until_disconnect(request, collect(request, generation))

    def write() -> ChatCompletion:
        readers = [plan.make_reader() for _ in collected]
        pairs = zip(collected, readers, strict=True)
        choices = [packed(_choice(body, choice, state.engine.tokenizer, reader)) for choice, reader in pairs]
        generation.num_reasoning_tokens = sum(reader.num_reasoning_tokens for reader in readers)
        return ChatCompletion(
            id=generation.id,
            created=generation.created,
            model=generation.model,
            choices=choices,
            usage=generation.usage(),
            prompt_token_ids=generation.prompts[0].token_ids if body.return_token_ids else UNSET,
            kv_transfer_params=generation.kv_transfer_params,
        )

    return Response(await encoded(collected, write), headers=headers, media_type="application/json")


def _check(body: ChatCompletionRequest) -> None:
    body.refuse_what_is_missing()
    if "prompt" in (body.model_extra or {}):
        raise APIError(400, "'prompt' is another name for 'messages'; give one of them", param="prompt")
    if body.continue_final_message and body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other"
        raise APIError(400, message, param="continue_final_message")
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "'top_logprobs' needs \"logprobs\": true", param="top_logprobs")


def _choice(
    body: ChatCompletionRequest, choice: Collected, tokenizer: Tokenizer | None, reader: ReplyReader
) -> ChatChoice:
    message = message_of(reader, choice.pieces)
    if body.echoed:
        message.content = body.echoed + (message.content or "")
    has_calls = message.tool_calls is not UNSET
    return ChatChoice(
        index=choice.index,
        message=message,
        finish_reason="tool_calls" if has_calls and choice.finish_reason == "stop" else choice.finish_reason,
        stop_reason=choice.stop_reason,
        logprobs=_logprobs(body, choice.logprobs, tokenizer),
        prompt_logprobs=UNSET if body.prompt_logprobs is None else prompt_logprobs(choice.prompt_logprobs),
        token_ids=choice.token_ids if body.return_token_ids else UNSET,
    )


def _logprobs(
    body: ChatCompletionRequest, entries: list[CompletionLogprobs] | None, tokenizer: Tokenizer | None
) -> ChatLogprobs | None:
    if not body.logprobs:
        return None
    spelling = by_id if body.return_tokens_as_token_ids else by_text
    num_top = len(body.logprob_token_ids) if body.logprob_token_ids else body.top_logprobs or 0
    return chat_logprobs(entries or [], tokenizer, num_top, spelling)


class _Chunks(EventWriter):
    """The role with each choice's first news, then text, then the finish reason, then the usage where asked for."""

    def __init__(
        self, generation: Generation, body: ChatCompletionRequest, tokenizer: Tokenizer | None, plan: ReplyPlan
    ) -> None:
        options = body.stream_options
        self._running_usage = options is not None and options.continuous_usage_stats
        self._wants_usage = options is not None and options.include_usage
        self._generation, self._body, self._tokenizer, self._plan = generation, body, tokenizer, plan
        self._writers: dict[int, DeltaWriter] = {}

    def take(self, index: int, output: RequestOutput) -> bytes:
        generation, body = self._generation, self._body
        data = b"" if index in self._writers else self._first(index)
        writer = self._writers[index]
        logprobs = _logprobs(body, output.logprobs, self._tokenizer)
        token_ids = output.output_tokens if body.return_token_ids else UNSET
        always = logprobs is not None or body.return_token_ids
        generation.num_reasoning_tokens -= writer.num_reasoning_tokens
        deltas = writer.deltas(output.text_delta, len(output.output_tokens), output.finished, always)
        generation.num_reasoning_tokens += writer.num_reasoning_tokens
        for delta in deltas:
            data += self._chunk([ChatChunkChoice(index, delta, logprobs, token_ids=token_ids)])
            logprobs, token_ids = None, UNSET
        if output.finished:
            ended = "tool_calls" if writer.has_calls else "stop"
            reason = "length" if output.finish_reason == "length" else ended
            stop_reason = UNSET if output.stop_reason is None else output.stop_reason
            data += self._chunk([ChatChunkChoice(index, Delta(), finish_reason=reason, stop_reason=stop_reason)])
        return data

    def end(self) -> bytes:
        return (self._chunk([], with_usage=True) if self._wants_usage else b"") + super().end()

    def _first(self, index: int) -> bytes:
        self._writers[index] = DeltaWriter(self._plan.make_reader())
        first = ChatChunkChoice(index, Delta(role="assistant", content=self._body.echoed))
        token_ids = self._generation.prompts[0].token_ids if self._body.return_token_ids else UNSET
        return self._chunk([first], prompt_token_ids=token_ids)

    def _chunk(self, choices: list[ChatChunkChoice], *, with_usage: bool = False, **more: Any) -> bytes:
        generation = self._generation
        has_usage = with_usage or self._running_usage
        usage = generation.usage() if has_usage else None if self._wants_usage else UNSET
        return event(ChatChunk(generation.id, generation.created, generation.model, choices, usage=usage, **more))
