"""The body of ``POST /v1/embeddings``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from atom_server.errors import unsupported
from atom_server.schemas.completions import list_of_prompts
from atom_server.schemas.sampling import CacheSalt, Priority


class EmbeddingRequest(BaseModel):
    """Prompts to turn into vectors of length 1."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = Field(None, max_length=1024, description="A served name; any request may leave it out.")
    input: Annotated[list[Any], BeforeValidator(list_of_prompts)] = Field(
        description="A string, a list of token ids, or a list of either.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or little-endian float32 in base64."
    )
    pooling: Literal["mean", "last"] = Field(
        "mean", description="The mean of the hidden states of all tokens, or that of the last one."
    )
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    user: str | None = Field(None, max_length=1024, description="Ignored.")

    def refuse_what_is_missing(self) -> None:
        """Refuse fields that would change the answer and are not built.

        Raises:
            APIError: 400 with code "unsupported_parameter".
        """
        if (self.model_extra or {}).get("dimensions") is not None:
            raise unsupported("vectors cannot be shortened; leave 'dimensions' out", "dimensions")
