"""Lists of what is stored, a page at a time, as OpenAI's clients go through them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from atom_server.batches.objects import BatchObject, FileObject
from atom_server.errors import APIError


def listed(objects: Sequence[FileObject | BatchObject], *, limit: int, after: str | None) -> Response:
    """The page behind the object with the id `after`, or the first one.

    Raises:
        APIError: 400; there is no such object.
    """
    if after is not None:
        ids = [each.id for each in objects]
        if after not in ids:
            raise APIError(400, f"there is no {after!r} in this list", param="after")
        objects = objects[ids.index(after) + 1 :]
    page = objects[:limit]
    answer = {
        "object": "list",
        "data": page,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(objects) > limit,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")
