"""Forms with a file, which goes to the disk as it comes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 2**16
# The boundaries and headers of parts, and their other fields.
_MAX_AROUND_FILE = 2**20


@contextlib.asynccontextmanager
async def form_with_file(
    request: Request, *, max_bytes: int
) -> AsyncGenerator[tuple[UploadFile, dict[str, str]], None]:
    """The part ``file`` and the other fields of a form. The file is gone after the block.

    Raises:
        APIError: 400 for what is no such form, 413 past `max_bytes`, 499 when the client goes away, or is too slow.
    """
    too_large = APIError(413, f"the file is larger than {max_bytes} bytes, the most that a file may have")

    async def limited() -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes + _MAX_AROUND_FILE:
                raise too_large
            yield chunk

    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise APIError(415, "a file comes as multipart/form-data, with its parts 'file' and 'purpose' (curl: -F)")
    parser = MultiPartParser(
        request.headers, limited(), max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise APIError(400, f"the body is no form that can be read: {error.message}", code="invalid_form") from None
    except ClientDisconnect:
        raise APIError(CLIENT_CLOSED_REQUEST, "the client went away", code="client_closed_request") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise APIError(400, "'file' is required: a part of the form that is a file", param="file")
        if (file.size or 0) > max_bytes:
            raise too_large
        yield file, {name: value for name, value in form.items() if isinstance(value, str)}
    finally:
        await form.close()
