"""The body of ``POST /v1/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from atom_server.schemas.completions import Prompts
from atom_server.schemas.model_request import PromptRequest


class EmbeddingRequest(PromptRequest):
    """Prompts to turn into vectors of length 1."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "input"}

    input: Prompts = Field(
        description="A string, a list of token ids, or a list of either.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or little-endian float32 in base64."
    )
    pooling: Literal["mean", "last"] = Field(
        "mean", description="The mean of the hidden states of all tokens, or that of the last one."
    )
