"""The bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from atom_server.bodies.body import parse_object
from atom_server.errors import APIError, unsupported
from atom_server.schemas.chat import MAX_MESSAGES, ChatCompletionRequest
from atom_server.schemas.fields.content import TextPart, read_text
from atom_server.schemas.fields.sampling import MAX_TOKENS, StopStrings
from atom_server.schemas.fields.strict_model import OpenModel, RequestOfModel, StrictModel
from atom_server.schemas.fields.tools import MAX_TOOLS, FunctionName
from atom_server.schemas.message_blocks import InputMessage, chat_messages, count_blocks


def _text_of_system(value: Any) -> Any:
    """The blocks of a system prompt, a paragraph each."""
    return "\n".join(read_text([block]) for block in value) if isinstance(value, list) else value


_SystemText = BeforeValidator(_text_of_system, json_schema_input_type=str | list[TextPart])


class ToolDefinition(OpenModel):
    """A tool of the client's; those that Anthropic runs are not here."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = Field(None, max_length=65_536)
    input_schema: dict[str, Any]
    strict: bool | None = None

    def function(self) -> dict[str, Any]:
        """As chat completions spell it."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.input_schema}
        return {"type": "function", "function": function | ({} if self.strict is None else {"strict": self.strict})}


class ToolChoice(StrictModel):
    """Whether a tool is to be used, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("type 'tool' needs the name of one")
        return self

    def choice(self) -> Any:
        """As chat completions spell it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(OpenModel):
    """Whether to think, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None


class OutputConfig(OpenModel):
    """The shape of the answer, and how much effort goes into it."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    format: dict[str, Any] | None = Field(None, description='{"type": "json_schema", "schema": {...}}')


class CountTokensRequest(RequestOfModel, OpenModel):
    """A conversation whose tokens are to be counted."""

    messages: Annotated[
        list[InputMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES), BeforeValidator(count_blocks)
    ] = Field(description="The assistant's turn goes on inside the last message where that is the assistant's.")
    system: Annotated[str, _SystemText] | None = Field(None, description="A string, or a list of blocks of type text.")
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field([])
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def as_chat(self, **fields: Any) -> ChatCompletionRequest:
        """The same conversation as a chat completion.

        Raises:
            APIError: 400; it asks for what is not supported.
        """
        if (self.model_extra or {}).get("mcp_servers"):
            raise unsupported("servers of tools are not supported here; leave 'mcp_servers' out", "mcp_servers")
        last = self.messages[-1]
        if last.role == "assistant" and (last.has_calls or not last.text.strip()):
            raise APIError(400, "the last message has no text to be continued", param="messages")
        choice, config = self.tool_choice, self.output_config
        system = [{"role": "system", "content": self.system}] if self.system else []
        values: dict[str, Any] = {
            "messages": system + chat_messages(self.messages),
            "continue_final_message": last.role == "assistant",
            "tools": [tool.function() for tool in self.tools],
            "tool_choice": None if choice is None else choice.choice(),
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "reasoning_effort": None if config is None else config.effort,
            "response_format": None if config is None else _response_format(config.format),
            **self._thinking_fields(),
            **fields,
        }
        chat, _ = parse_object(ChatCompletionRequest, values)
        return chat

    def _thinking_fields(self) -> dict[str, Any]:
        if self.thinking is None or self.thinking.type == "adaptive":
            return {}
        thinks = self.thinking.type == "enabled"
        # The two names that templates know this by.
        fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinks, "thinking": thinks}}
        return fields | {"include_reasoning": thinks, "thinking_token_budget": self.thinking.budget_tokens}


class MessagesRequest(CountTokensRequest):
    """A conversation to continue."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop_sequences: StopStrings = Field([])
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] = -1
    stream: bool = False
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")

    def to_chat(self) -> ChatCompletionRequest:
        """The chat completion that answers this."""
        same = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
        return self.as_chat(stop=self.stop_sequences, **{name: getattr(self, name) for name in same})


def _response_format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}
