"""The body of ``POST /abort_requests``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atom_server.schemas.fields.strict_model import RequestOfModel

RequestId = Annotated[str, Field(min_length=1, max_length=128)]


class AbortRequest(RequestOfModel):
    """Which requests are to end."""

    request_ids: list[RequestId] = Field(
        default=[], max_length=4096, description="Ids of answers, as their clients and /debug/requests see them."
    )
    abort_all: bool = False
