"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages API, for text and tools."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_core import RequestOutput
from atom_server.answers.message_writer import MessageWriter
from atom_server.answers.streaming import EventStream, EventWriter
from atom_server.answers.whole_answer import encoded
from atom_server.bodies.body import naming_ignored
from atom_server.bodies.client_names import MESSAGES, named_as
from atom_server.connections.disconnect import until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation
from atom_server.generation.reply_plan import encode_chat, plan_reply
from atom_server.generation.reply_reader import ReplyReader, read_whole
from atom_server.prompts.conversation import tokens_with_pictures
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.plain_route import PlainRoute
from atom_server.schemas.messages import CountTokensRequest, MessagesRequest

router = APIRouter(tags=["messages"], route_class=PlainRoute)


@router.post("/v1/messages", response_class=Response, openapi_extra=described(MessagesRequest))
async def messages(request: Request) -> Response:
    """The assistant's next turn in a conversation, whole or as server-sent events."""
    state, body, headers = await accepted(request, MessagesRequest)
    with named_as(MESSAGES):
        chat = body.to_chat()
        prompt = await encode_chat(request, chat)
        plan = plan_reply(state, chat, prompt)
    generation = await Generation.submit(request, chat, [prompt], plan.params, kind="msg", names=MESSAGES)
    headers = naming_ignored(headers, chat.without_effect(plan.params), MESSAGES)
    reader = plan.make_reader()
    writer = MessageWriter(generation, reader.call_ids)
    if body.stream:
        return EventStream(request, generation, _Events(reader, writer), headers=headers)
    [choice] = await until_disconnect(request, collect(request, generation))

    def write() -> dict[str, Any]:
        writer.take(read_whole(reader, choice.pieces))
        writer.end_blocks()
        return writer.message(writer.blocks) | writer.ending(choice.finish_reason, choice.stop_reason)

    return Response(await encoded([choice], write), headers=headers, media_type="application/json")


@router.post("/v1/messages/count_tokens", openapi_extra=described(CountTokensRequest))
async def count_tokens(request: Request) -> dict[str, int]:
    """How many tokens the prompt of a conversation has."""
    state, body, _ = await accepted(request, CountTokensRequest, generates=False)
    prompt = await encode_chat(request, body.as_chat(), has_to_fit=False)
    return {"input_tokens": len(tokens_with_pictures(state, prompt))}


class _Events(EventWriter):
    """A message's start with the first news, its blocks, and its end with the last news."""

    def __init__(self, reader: ReplyReader, writer: MessageWriter) -> None:
        self._reader, self._writer = reader, writer
        self._has_started = False

    def take(self, index: int, output: RequestOutput) -> bytes:
        data = b"" if self._has_started else self._writer.start()
        self._has_started = True
        parts = self._reader.take(output.text_delta, len(output.output_tokens), finished=output.finished)
        data += self._writer.take(parts)
        if output.finished:
            data += self._writer.end_blocks() + self._writer.stop(output.finish_reason, output.stop_reason)
        return data

    def end(self) -> bytes:
        return b""

    def fail(self, error: APIError) -> bytes:
        return b"event: error\ndata: " + error.message_body() + b"\n\n"
