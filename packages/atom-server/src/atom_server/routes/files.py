"""``/v1/files``: files of requests that batches read, and of their answers. Upload, list, get, read, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from atom_server.access.guard import caller_of
from atom_server.batches.worker import BatchWorker
from atom_server.bodies.body import ignored_header
from atom_server.bodies.form import form_with_file
from atom_server.errors import RETRY_AFTER, APIError
from atom_server.routes.openapi import FILE_FORM
from atom_server.routes.pages import listed
from atom_server.state import server_state

router = APIRouter(tags=["batches"])

MAX_FILE_BYTES = 200 * 2**20
_MAX_NAME = 255
_MAX_UPLOADS = 4


def batches_of(request: Request) -> BatchWorker:
    """The files and batches of the server.

    Raises:
        APIError: 404; it has no folder for them.
    """
    batches = server_state(request).batches
    if batches is None:
        message = "files and batches are off here: start the server with --batch-folder DIR"
        raise APIError(404, message, code="batches_are_off")
    return batches


@router.post("/v1/files", response_class=Response, openapi_extra=FILE_FORM)
async def upload_file(request: Request) -> Response:
    """Keep a file of requests, one in each line, for a batch."""
    batches, caller = batches_of(request), caller_of(request)
    server_state(request).rates.take_request(caller)
    if batches.num_uploads >= _MAX_UPLOADS:
        message = f"{_MAX_UPLOADS} files are being uploaded already: try again later"
        raise APIError(503, message, code="overloaded", headers=RETRY_AFTER)
    with batches.uploading():
        async with form_with_file(request, max_bytes=MAX_FILE_BYTES) as (file, fields):
            purpose = fields.pop("purpose", None)
            if purpose != "batch":
                given = "is missing" if purpose is None else f"is {purpose[:60]!r}"
                raise APIError(400, f"'purpose' {given}; files are for 'batch' here", param="purpose")
            name = (file.filename or "requests.jsonl")[:_MAX_NAME]
            kept = await batches.store.add_file(caller.name, name, file.file, file.size or 0)
    return Response(msgspec.json.encode(kept), headers=ignored_header(list(fields)), media_type="application/json")


@router.get("/v1/files", response_class=Response)
async def list_files(
    request: Request,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """The files of this key, a page at a time."""
    files = batches_of(request).store.files(caller_of(request).name)
    files = [file for file in files if purpose in (None, file.purpose)]
    return listed(files if order == "asc" else files[::-1], limit=limit, after=after)


@router.get("/v1/files/{file_id}", response_class=Response)
async def get_file(request: Request, file_id: str) -> Response:
    """What a file is called and how large it is."""
    file = batches_of(request).store.file(file_id, caller_of(request).name)
    return Response(msgspec.json.encode(file), media_type="application/json")


@router.get("/v1/files/{file_id}/content", response_class=Response)
async def get_content(request: Request, file_id: str) -> Response:
    """What is in a file."""
    path = batches_of(request).store.content_path(file_id, caller_of(request).name)
    return FileResponse(path, media_type="application/jsonl")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
    """Remove a file that no open batch uses."""
    await batches_of(request).store.delete_file(file_id, caller_of(request).name)
    return {"id": file_id, "object": "file", "deleted": True}
