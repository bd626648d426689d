"""The body of ``POST /v1/batches``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atom_server.schemas.fields.model_request import at_most
from atom_server.schemas.fields.strict_model import StrictModel


class CreateBatchRequest(StrictModel):
    """Which file is to be answered."""

    input_file_id: str = Field(max_length=128, description="A file that was uploaded with the purpose `batch`.")
    endpoint: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"] = Field(
        description="The route that all lines ask."
    )
    completion_window: Literal["24h"] = Field(description="What has no answer by then gets none.")
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
        at_most(16),
    ] = Field({})
