"""``/v1/batches``: requests of a file, answered into another one beside live requests. Create, list, get, cancel."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from atom_server.access.guard import caller_of
from atom_server.batches.objects import BatchObject
from atom_server.bodies.body import decode_json_object, ignored_header, parse_object, read_body
from atom_server.routes.files import batches_of
from atom_server.routes.openapi import described
from atom_server.routes.pages import listed
from atom_server.schemas.create_batch import CreateBatchRequest
from atom_server.state import server_state

router = APIRouter(tags=["batches"])

_MAX_BODY_BYTES = 2**20


@router.post("/v1/batches", response_class=Response, openapi_extra=described(CreateBatchRequest))
async def create_batch(request: Request) -> Response:
    """Answer every line of a file that was uploaded."""
    batches, caller = batches_of(request), caller_of(request)
    server_state(request).rates.take_request(caller)
    values = decode_json_object(await read_body(request, _MAX_BODY_BYTES))
    body, ignored = parse_object(CreateBatchRequest, values)
    stored = await batches.store.add_batch(
        caller.name, body.input_file_id, body.endpoint, metadata=body.metadata or None
    )
    batches.begin(stored)
    return _written(stored.public, ignored_header(ignored))


@router.get("/v1/batches", response_class=Response)
async def list_batches(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """The batches of this key, the newest first, a page at a time."""
    batches = batches_of(request).store.batches(caller_of(request).name)
    return listed(batches[::-1], limit=limit, after=after)


@router.get("/v1/batches/{batch_id}", response_class=Response)
async def get_batch(request: Request, batch_id: str) -> Response:
    """How far a batch has got, and the files of its answers once it has ended."""
    return _written(batches_of(request).store.batch(batch_id, caller_of(request).name).public)


@router.post("/v1/batches/{batch_id}/cancel", response_class=Response)
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """End a batch; what has been answered is kept."""
    batches = batches_of(request)
    stored = batches.store.batch(batch_id, caller_of(request).name)
    await batches.cancel(stored)
    return _written(stored.public)


def _written(batch: BatchObject, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(batch), headers=headers, media_type="application/json")
