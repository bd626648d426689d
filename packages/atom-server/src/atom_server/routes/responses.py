"""``/v1/responses``: OpenAI's Responses API. Create (whole, streamed, in the background), get, delete, cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from atom_server.body import read_request
from atom_server.collect import collect
from atom_server.disconnect import cancel_all, until_disconnect
from atom_server.errors import APIError, as_api_error
from atom_server.generation import Generation
from atom_server.prompts import encode_messages
from atom_server.response_store import StoredResponse
from atom_server.response_writer import ResponseWriter
from atom_server.routes.openapi import described
from atom_server.schemas.create_response import CreateResponseRequest
from atom_server.state import ServerState, server_state
from atom_server.streaming import EventStream

router = APIRouter(tags=["responses"])

Turns = list[dict[str, str]]


@router.post("/v1/responses", response_class=Response, openapi_extra=described(CreateResponseRequest))
async def create_response(request: Request) -> Response:
    """A response to the input, whole, as server-sent events, or in the background."""
    state = server_state(request)
    state.check_takes_requests()
    body, headers = await read_request(request, CreateResponseRequest, state.options.max_body_bytes)
    model = state.check_model(body.model)
    earlier = _earlier_turns(state, body)
    chat = body.to_chat(earlier)
    prompt = await encode_messages(state, chat.template_messages())
    generation = await Generation.submit(request, chat, [prompt], chat.chat_sampling_params(), kind="resp")
    writer = ResponseWriter(body, model)
    turns = [*earlier, *body.turns()]

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            state.responses.put(StoredResponse(response, _with_answer(turns, response)))

    if body.stream:
        return EventStream(request, generation, writer.events(generation, keep), headers=headers, end=b"")
    if body.background:
        response = await _start_in_background(request, generation, writer, turns)
    else:
        [choice] = await until_disconnect(request, collect(request, generation))
        response = writer.finished(choice.text, choice.finish_reason, generation)
        keep(response)
    return Response(msgspec.json.encode(response), headers=headers, media_type="application/json")


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> dict[str, Any]:
    """A stored response, as it stands."""
    return server_state(request).responses.find(response_id).response


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Forget a stored response; one that is still being made is ended."""
    server_state(request).responses.remove(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> dict[str, Any]:
    """End a response that is being made in the background."""
    stored = server_state(request).responses.find(response_id)
    if stored.response["status"] != "cancelled":
        if stored.task is None or stored.task.done():
            message = "only a response that is still being made in the background can be cancelled"
            raise APIError(400, message, param="response_id", code="not_cancellable")
        await cancel_all(stored.task)
    return stored.response


def _earlier_turns(state: ServerState, body: CreateResponseRequest) -> Turns:
    if body.previous_response_id is None:
        return []
    previous = state.responses.get(body.previous_response_id)
    if previous is None or previous.response["status"] not in ("completed", "incomplete"):
        what = "there is no stored response" if previous is None else "there is no finished response"
        message = f"{what} {body.previous_response_id!r} to go on from"
        raise APIError(400, message, param="previous_response_id", code="previous_response_not_found")
    return previous.turns


def _with_answer(turns: Turns, response: dict[str, Any]) -> Turns:
    return [*turns, {"role": "assistant", "content": response["output"][0]["content"][0]["text"]}]


async def _start_in_background(
    request: Request, generation: Generation, writer: ResponseWriter, turns: Turns
) -> dict[str, Any]:
    stored = StoredResponse(writer.unfinished("in_progress"), turns)
    try:
        server_state(request).responses.put(stored)
    except APIError:
        await generation.close()
        raise

    async def finish() -> None:
        try:
            [choice] = await collect(request, generation)
        except Exception as error:
            stored.response = writer.unfinished("failed", as_api_error(error))
            return
        stored.response = writer.finished(choice.text, choice.finish_reason, generation)
        stored.turns = _with_answer(turns, stored.response)

    async def run() -> None:
        try:
            await finish()
        except asyncio.CancelledError:
            stored.response = writer.unfinished("cancelled")
            raise
        finally:
            await generation.close()

    stored.task = asyncio.ensure_future(run())
    return stored.response
