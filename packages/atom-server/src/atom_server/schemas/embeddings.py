"""The body of ``POST /v1/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atom_server.errors import APIError
from atom_server.schemas.chat import ChatMessages
from atom_server.schemas.completions import Prompts
from atom_server.schemas.fields.model_request import MAX_INTEGER, PromptRequest


class EmbeddingRequest(PromptRequest):
    """Prompts to turn into vectors, or a conversation to turn into one, with its pictures and videos."""

    engine_names: ClassVar[Mapping[str, str]] = {"prompt": "input"}

    input: Prompts | None = Field(None, description="A string, a list of token ids, or a list of either.")
    messages: ChatMessages | None = Field(
        None, description="In the place of input: a conversation, which goes through the chat template."
    )
    add_generation_prompt: bool = Field(False, description="End messages where the assistant's turn begins.")
    continue_final_message: bool = Field(False, description="End messages inside the last one.")
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
    task: Annotated[str, Field(max_length=256)] | None = Field(
        None, description="What vectors are for, where the model has adapters for tasks: retrieval.query and others."
    )
    dimensions: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None, description="Keep the first numbers only, where the model was made for that."
    )

    def check(self) -> None:
        """Raise APIError 400 unless there is one thing to embed."""
        if (self.input is None) == (self.messages is None):
            code = "missing_required_parameter" if self.input is None else "invalid_value"
            raise APIError(400, "give either 'input' or 'messages'", param="input", code=code)
        if self.messages is not None and self.prompt_name is not None:
            message = "'prompt_name' goes with 'input': write what stands before messages as one of them"
            raise APIError(400, message, param="prompt_name")
        if self.add_generation_prompt and self.continue_final_message:
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other"
            raise APIError(400, message, param="continue_final_message")

    def name_of(self, parameter: str | None) -> str | None:
        is_chat = self.messages is not None and parameter in ("prompt", "images")
        return "messages" if is_chat else super().name_of(parameter)

    @property
    def num_prompts(self) -> int:
        return 1 if self.input is None else len(self.input)
