"""The body of ``POST /v1/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atom_server.schemas.completions import Prompts
from atom_server.schemas.fields.model_request import MAX_INTEGER, PromptRequest


class EmbeddingRequest(PromptRequest):
    """Prompts to turn into vectors."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "input"}

    input: Prompts = Field(description="A string, a list of token ids, or a list of either.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or little-endian float32 in base64."
    )
    pooling: Literal["mean", "last", "cls"] | None = Field(
        None,
        description="The mean of the hidden states of all tokens, or that of the last or first one; "
        "left out, the model's own.",
    )
    prompt_name: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="Which of the model's prompts is put before each text; left out, its default if it has one."
    )
    dimensions: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None, description="Keep the first numbers only, where the model was made for that."
    )

    @property
    def num_prompts(self) -> int:
        return len(self.input)
