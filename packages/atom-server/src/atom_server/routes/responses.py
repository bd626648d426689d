"""``/v1/responses``: OpenAI's Responses API. Create (whole, streamed, in the background), get, delete, cancel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from atom_server.access.guard import caller_of
from atom_server.answers.streaming import EventStream
from atom_server.answers.whole_answer import written
from atom_server.bodies.body import naming_ignored
from atom_server.bodies.client_names import RESPONSES, named_as
from atom_server.connections.disconnect import cancel_all, until_disconnect
from atom_server.errors import APIError
from atom_server.generation.collect import collect
from atom_server.generation.generation import Generation
from atom_server.generation.reply_plan import encode_chat, plan_reply
from atom_server.responses.run import ResponseRun
from atom_server.responses.store import StoredResponse
from atom_server.responses.writer import ResponseWriter
from atom_server.routes.accepted import accepted
from atom_server.routes.openapi import described
from atom_server.routes.plain_route import PlainRoute
from atom_server.schemas.create_response import CreateResponseRequest
from atom_server.state import ServerState, server_state

router = APIRouter(tags=["responses"], route_class=PlainRoute)

Items = list[dict[str, Any]]
_STREAM = "text/event-stream"


@router.post("/v1/responses", response_class=Response, openapi_extra=described(CreateResponseRequest))
async def create_response(request: Request) -> Response:
    """A response to the input, whole, as server-sent events, or in the background."""
    state, body, headers = await accepted(request, CreateResponseRequest)
    caller = caller_of(request)
    owner = caller.name
    earlier = _earlier_items(state, body, owner)
    with named_as(RESPONSES):
        chat = body.to_chat(earlier)
        prompt = await encode_chat(request, chat)
        plan = plan_reply(state, chat, prompt)
    generation = await Generation.submit(request, chat, [prompt], plan.params, kind="resp", names=RESPONSES)
    headers = naming_ignored(headers, chat.without_effect(plan.params), RESPONSES)
    writer = ResponseWriter(body, generation.model, plan.make_reader(), state.engine.tokenizer)
    stored = StoredResponse(writer.unfinished("in_progress"), [*earlier, *body.input_items(writer.id)], owner=owner)
    run = ResponseRun(
        request, generation, writer, stored, state.responses if body.store and not caller.is_batch else None
    )
    if body.background:
        await run.start(streams=body.stream)
        if stored.events is not None:
            return StreamingResponse(stored.events.follow(), headers=headers, media_type=_STREAM)
    elif body.stream:
        return EventStream(request, generation, run.events(), headers=headers)
    else:
        [choice] = await until_disconnect(request, collect(request, generation))
        run.keep(await written([choice], lambda: writer.whole(choice, generation)))
    return Response(msgspec.json.encode(stored.response), headers=headers, media_type="application/json")


@router.get("/v1/responses/{response_id}", response_class=Response)
async def get_response(
    request: Request,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
) -> Response:
    """A stored response, as it stands, or the events of its stream after a number, to come included."""
    stored = server_state(request).responses.find(response_id, caller_of(request).name)
    if not stream:
        return Response(msgspec.json.encode(stored.response), media_type="application/json")
    if stored.events is None:
        raise APIError(400, "this response was not created as a stream", param="stream", code="not_streamed")
    return StreamingResponse(stored.events.follow(starting_after), media_type=_STREAM)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=256)] = None,
) -> dict[str, Any]:
    """What a stored response was made from, a page at a time."""
    items = server_state(request).responses.find(response_id, caller_of(request).name).items
    items = items if order == "asc" else items[::-1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise APIError(400, f"there is no item {after!r} in the input", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Forget a stored response; one that is still being made is ended."""
    server_state(request).responses.remove(response_id, caller_of(request).name)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> dict[str, Any]:
    """End a response that is being made in the background."""
    stored = server_state(request).responses.find(response_id, caller_of(request).name)
    if stored.response["status"] != "cancelled":
        if stored.task is None or stored.task.done():
            message = "only a response that is still being made in the background can be cancelled"
            raise APIError(400, message, param="response_id", code="not_cancellable")
        await cancel_all(stored.task)
    return stored.response


def _earlier_items(state: ServerState, body: CreateResponseRequest, owner: str) -> Items:
    if body.previous_response_id is None:
        return []
    previous = state.responses.get(body.previous_response_id, owner)
    if previous is None or previous.response["status"] not in ("completed", "incomplete"):
        what = "there is no stored response" if previous is None else "there is no finished response"
        message = f"{what} {body.previous_response_id!r} to go on from"
        raise APIError(400, message, param="previous_response_id", code="previous_response_not_found")
    return previous.conversation
