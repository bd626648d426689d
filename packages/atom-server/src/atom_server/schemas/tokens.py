"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from atom_server.errors import APIError
from atom_server.schemas.chat import ChatMessages
from atom_server.schemas.fields.model_request import MAX_INTEGER
from atom_server.schemas.fields.sampling import TokenId
from atom_server.schemas.fields.strict_model import RequestOfModel

# As many values as a body may hold.
MAX_TOKENS = 2**19


def _token_ids(value: Any, check_each: ValidatorFunctionWrapHandler) -> list[int]:
    """Ids are many and rarely wrong: looked at one by one, a microsecond each, only where one of them is wrong."""
    if isinstance(value, list) and len(value) > MAX_TOKENS:
        raise ValueError(f"at most {MAX_TOKENS} token ids fit one request, not {len(value)}")
    if isinstance(value, list) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_INTEGER:
        return value
    return check_each(value)


TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_TOKENS), WrapValidator(_token_ids)]


class TokenizeRequest(RequestOfModel):
    """A text, or a conversation that goes through the chat template first."""

    prompt: str | None = None
    messages: ChatMessages | None = None
    add_special_tokens: bool | None = Field(None, description="By default true for text and false for messages.")
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    def check(self) -> None:
        """Raise APIError 400 unless there is one thing to tokenize."""
        if (self.prompt is None) == (self.messages is None):
            raise APIError(400, "give either 'prompt' or 'messages'", param="prompt")


class DetokenizeRequest(RequestOfModel):
    """Token ids to turn into text."""

    tokens: TokenIds
    skip_special_tokens: bool = False
