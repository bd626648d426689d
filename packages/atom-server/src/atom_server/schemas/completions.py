"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from atom_core.engine.inputs.validation import MAX_LOGPROBS
from atom_server.schemas.fields.model_request import MAX_INTEGER
from atom_server.schemas.fields.sampling import GenerationRequest

MAX_PROMPTS = 2048


def list_of_prompts(value: Any) -> Any:
    """Each of the four forms as a list of prompts, every one a string or a list.

    Lists of ids may be long: what they hold is looked at later, beside the event loop.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of token ids, or a list of either")
    if not value:
        raise ValueError("must not be empty")
    if type(value[0]) is int and 0 <= value[0] <= MAX_INTEGER:
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts fit one request, not {len(value)}")
    if not all(isinstance(prompt, str | list) for prompt in value):
        raise ValueError("must be a string, a list of token ids, or a list of either")
    return value


_TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]], Field(fail_fast=True, min_length=1)]
_Text = Annotated[str, Field(min_length=1)]
_Many = Annotated[list[_Text | _TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
# Told apart by hand: an error must name the prompt, not each of the types that it could have been.
Prompts = Annotated[list[Any], BeforeValidator(list_of_prompts, json_schema_input_type=_Text | _TokenIds | _Many)]


class CompletionRequest(GenerationRequest):
    """Text to continue, once or (a list) several times in one request."""

    prompt: Prompts = Field(description="A string, a list of token ids, or a list of either.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = Field(False, description="Begin the text (and the logprobs) with the prompt.")

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)
