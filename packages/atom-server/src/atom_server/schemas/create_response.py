"""The body of ``POST /v1/responses``: OpenAI's Responses API, for text and functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from atom_core.engine.inputs.validation import MAX_LOGPROBS
from atom_server.bodies.body import parse_object
from atom_server.errors import unsupported
from atom_server.schemas.chat import MAX_MESSAGES, ChatCompletionRequest
from atom_server.schemas.fields.model_request import at_most
from atom_server.schemas.fields.sampling import MAX_TOKENS
from atom_server.schemas.fields.strict_model import OpenModel, RequestOfModel, StrictModel
from atom_server.schemas.fields.tools import MAX_TOOLS, FunctionDefinition, FunctionName, kind_of_choice
from atom_server.schemas.response_items import Item, chat_messages, stored_parts, typed_items

LOGPROBS = "message.output_text.logprobs"
_SAME_IN_CHATS = ("model", "temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "thinking_token_budget")
_UNSUPPORTED = ("conversation", "prompt")
_ITEMS = TypeAdapter(list[Item])


class FunctionTool(FunctionDefinition):
    """A function that the model may call; tools that OpenAI runs are not here."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") != "function":
            raise ValueError("only tools of type 'function' can be called here")
        return value

    def as_tool(self) -> dict[str, Any]:
        """As chat completions spell it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class FunctionChoice(StrictModel):
    """The one function that has to be called."""

    type: Literal["function"]
    name: FunctionName

    def as_choice(self) -> dict[str, Any]:
        """As chat completions spell it."""
        return {"type": "function", "function": {"name": self.name}}


class Reasoning(OpenModel):
    """How much to think."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    summary: Annotated[str, Field(max_length=32)] | None = Field(None, description="Ignored: the reasoning is shown.")


class AllowedFunctions(StrictModel):
    """Those of the functions that may be called, and whether one of them has to be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]

    def as_choice(self) -> dict[str, Any]:
        """As chat completions spell it."""
        tools = [tool.as_choice() for tool in self.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[FunctionChoice, Tag("one")]
    | Annotated[AllowedFunctions, Tag("some")],
    Discriminator(kind_of_choice),
]
Items = Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class CreateResponseRequest(RequestOfModel, OpenModel):
    """A response to make. `input` is a string or a list of items."""

    input: Annotated[Items, BeforeValidator(typed_items, json_schema_input_type=str | Items)]
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
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
        at_most(16),
    ] = Field({})
    text: dict[str, Any] | None = Field(None, description='{"format": {"type": ...}}')
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        None, description="Ignored: it counts OpenAI's tools."
    )
    reasoning: Reasoning | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        None, description="Tokens of reasoning after which it is ended."
    )
    include: Annotated[list[Annotated[str, Field(max_length=64)]], Field(fail_fast=True, max_length=16)] = Field(
        [], description=f"{LOGPROBS} gives log-probabilities; others are ignored."
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    truncation: Literal["disabled"] = "disabled"
    user: str | None = Field(None, max_length=1024, description="Ignored.")

    @property
    def num_logprobs(self) -> int | None:
        """Likely tokens to tell of each; None where none were asked for."""
        return (self.top_logprobs or 0) if LOGPROBS in self.include or self.top_logprobs else None

    def input_items(self, response_id: str) -> list[dict[str, Any]]:
        """The input as the store keeps it: every item with an id."""
        given = [item.model_dump(exclude_unset=True) for item in self.input]
        return [_as_stored(item, f"{response_id}_{number}") for number, item in enumerate(given)]

    def to_chat(self, earlier: Sequence[dict[str, Any]]) -> ChatCompletionRequest:
        """The chat completion that answers this after the `earlier` items.

        Raises:
            APIError: 400; it asks for what is not supported.
        """
        for name in _UNSUPPORTED:
            if (self.model_extra or {}).get(name):
                raise unsupported(f"{name!r} is not supported here; leave it out", name)
        if self.background and not self.store:
            raise unsupported("a response in the background must be stored", "store")
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        choice = self.tool_choice
        values: dict[str, Any] = {
            "messages": [*system, *chat_messages([*_ITEMS.validate_python(list(earlier)), *self.input])],
            "max_tokens": self.max_output_tokens,
            "response_format": _response_format((self.text or {}).get("format")),
            "tools": [tool.as_tool() for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else choice.as_choice(),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "logprobs": self.num_logprobs is not None,
            "top_logprobs": self.num_logprobs,
            **{name: getattr(self, name) for name in _SAME_IN_CHATS},
        }
        chat, _ = parse_object(ChatCompletionRequest, values)
        chat.refuse_what_is_missing()
        return chat


def _as_stored(item: dict[str, Any], item_id: str) -> dict[str, Any]:
    """As clients expect items to be listed: texts are parts."""
    item = {"id": item_id, **item}
    if item["type"] == "message":
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
        parts = [part | more for part in stored_parts(item["content"], kind)]
        item |= {"content": parts, "status": "completed"}
    elif item["type"] == "reasoning":
        texts = [{"type": "reasoning_text", "text": item["content"]}] if item.get("content") else []
        summary = [{"type": "summary_text", "text": item["summary"]}] if item.get("summary") else []
        item |= {"content": texts, "summary": summary}
    elif item["type"] == "function_call_output" and isinstance(item["output"], list):
        item |= {"output": stored_parts(item["output"], "input_text")}
    return item


def _response_format(form: Any) -> Any:
    """The format as chat completions spell it."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    return form
