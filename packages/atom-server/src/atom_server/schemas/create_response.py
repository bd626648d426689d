"""The body of ``POST /v1/responses``: OpenAI's Responses API, for text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from atom_server.body import parse_object
from atom_server.errors import unsupported
from atom_server.schemas.chat import MAX_MESSAGES, ChatCompletionRequest
from atom_server.schemas.sampling import MAX_TOKENS

_TEXT_PARTS = ("input_text", "output_text", "text")
_UNSUPPORTED = ("tools", "top_logprobs", "include", "conversation", "prompt", "max_tool_calls")


def _text_of_parts(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError("parts must be of type 'input_text' or 'output_text', with a string 'text'")
        texts.append(part["text"])
    return "".join(texts)


def _items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class InputItem(BaseModel):
    """One turn of the input."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[str, BeforeValidator(_text_of_parts)] = Field(
        description="A string, or a list of parts of type input_text or output_text."
    )


class CreateResponseRequest(BaseModel):
    """A response to make. `input` is a string or a list of messages."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = Field(None, max_length=1024, description="A served name; any request may leave it out.")
    input: Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(_items)]
    instructions: str | None = Field(None, description="A system prompt for this response alone.")
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        None, description="Left out: whatever the context has left after the prompt."
    )
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] = -1
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stream: bool = False
    background: bool = Field(False, description="Answer at once; fetch the response by its id later.")
    store: bool = Field(True, description="Keep the response for a while, to be fetched or continued.")
    previous_response_id: str | None = Field(None, max_length=128, description="A stored response to go on from.")
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
    ] = {}
    text: dict[str, Any] | None = Field(None, description='{"format": {"type": ...}}')
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True
    truncation: Literal["disabled"] = "disabled"
    user: str | None = Field(None, max_length=1024, description="Ignored.")

    def turns(self) -> list[dict[str, str]]:
        """The input as messages of a chat."""
        return [{"role": item.role, "content": item.content} for item in self.input]

    def to_chat(self, earlier: Sequence[dict[str, str]]) -> ChatCompletionRequest:
        """The chat completion that answers this after the `earlier` messages.

        Raises:
            APIError: 400; it asks for what is not supported.
        """
        for name in _UNSUPPORTED:
            if (self.model_extra or {}).get(name):
                raise unsupported(f"{name!r} is not supported here; leave it out", name)
        if self.background and self.stream:
            raise unsupported("a response in the background cannot be streamed; choose one", "background")
        if self.background and not self.store:
            raise unsupported("a response in the background must be stored", "store")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        values: dict[str, Any] = {
            "messages": [*system, *earlier, *self.turns()],
            "model": self.model,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "response_format": _response_format((self.text or {}).get("format")),
        }
        chat, _ = parse_object(ChatCompletionRequest, values)
        chat.refuse_what_is_missing()
        return chat


def _response_format(form: Any) -> Any:
    """The format as chat completions spell it."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    return form
