"""The bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from atom_server.errors import APIError, unsupported
from atom_server.schemas.chat import MAX_MESSAGES, ChatCompletionRequest, text_of_parts
from atom_server.schemas.sampling import MAX_TOKENS, StopStrings


def _text_of_system(value: Any) -> Any:
    """The blocks of a system prompt, a paragraph each."""
    return "\n".join(text_of_parts([block]) for block in value) if isinstance(value, list) else value


class InputMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["user", "assistant"]
    content: Annotated[str, BeforeValidator(text_of_parts)] = Field(
        description="A string, or a list of blocks of type text."
    )


class CountTokensRequest(BaseModel):
    """A conversation whose tokens are to be counted."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = Field(None, max_length=1024, description="A served name; any request may leave it out.")
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The assistant's turn goes on inside the last message where that is the assistant's."
    )
    system: Annotated[str | None, BeforeValidator(_text_of_system)] = Field(
        None, description="A string, or a list of blocks of type text."
    )

    def as_chat(self, **fields: Any) -> ChatCompletionRequest:
        """The same conversation as a chat completion.

        Raises:
            APIError: 400; it asks for what is not supported.
        """
        extra = self.model_extra or {}
        for name in ("tools", "mcp_servers"):
            if extra.get(name):
                raise unsupported(f"tools are not supported here; leave {name!r} out", name)
        if isinstance(thinking := extra.get("thinking"), dict) and thinking.get("type") == "enabled":
            raise unsupported("a thinking budget is not supported; leave 'thinking' out", "thinking")
        last = self.messages[-1]
        if last.role == "assistant" and not last.content.strip():
            raise APIError(400, "the last message has no text to be continued", param="messages")
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [{"role": message.role, "content": message.content} for message in self.messages]
        values = {"messages": system + turns, "continue_final_message": last.role == "assistant", **fields}
        return ChatCompletionRequest.model_validate({k: v for k, v in values.items() if v is not None})


class MessagesRequest(CountTokensRequest):
    """A conversation to continue."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop_sequences: StopStrings = []
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] = -1
    stream: bool = False
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")

    def to_chat(self) -> ChatCompletionRequest:
        """The chat completion that answers this."""
        return self.as_chat(
            model=self.model,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stream=self.stream,
        )
