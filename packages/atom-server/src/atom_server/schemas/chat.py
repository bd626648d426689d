"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field, ValidationInfo, field_validator

from atom_core import SamplingParams
from atom_core.engine.inputs.validation import MAX_LOGPROBS
from atom_server.schemas.fields.content import ChatContent, Content, text_of
from atom_server.schemas.fields.sampling import MAX_TOKENS, GenerationRequest
from atom_server.schemas.fields.strict_model import OpenModel
from atom_server.schemas.fields.tools import MAX_TOOLS, AllowedToolsChoice, NamedToolChoice, Tool, ToolChoice

MAX_MESSAGES = 4096
MAX_DOCUMENTS = 1024
ROLES_WITH_PICTURES = ("user", "tool")
# A template would take these for its own arguments: a client could pass a second conversation or template by them.
RESERVED_TEMPLATE_KEYS = frozenset(
    [
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("tokenize", "continue_final_message", "bos_token", "eos_token", "pad_token", "unk_token"),
        *("raise_exception", "strftime_now"),
    ]
)


def _no_reserved_keys(value: Any) -> Any:
    if isinstance(value, dict):
        reserved = sorted(RESERVED_TEMPLATE_KEYS.intersection(value))
        if reserved:
            raise ValueError(f"{', '.join(reserved)} cannot be set here")
    return value


def _messages(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ChatMessage(OpenModel):
    """One turn. Fields besides these (``tool_call_id``, ``reasoning_content``, ...) reach the template as they are."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: ChatContent | None = Field(
        None, description="A string, or a list of parts of type text, image_url or video_url, as far as the model sees."
    )

    @field_validator("content")
    @classmethod
    def _only_shown_to_the_assistant(cls, content: Content | None, info: ValidationInfo) -> Content | None:
        if isinstance(content, list) and info.data.get("role") not in ROLES_WITH_PICTURES:
            raise ValueError(f"pictures go into messages of {' or '.join(ROLES_WITH_PICTURES)}")
        return content

    @property
    def text(self) -> str:
        """The text of its parts, joined."""
        return text_of(self.content or "")


ChatMessages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionRequest(GenerationRequest):
    """A conversation to continue. `prompt` is another name for `messages`, or a string for a single user turn."""

    also_accepted: ClassVar[frozenset[str]] = frozenset(("prompt",))
    engine_names: ClassVar[Mapping[str, str]] = {
        "stop_strings": "stop",
        "prompt": "messages",
        "images": "messages",
    }

    messages: Annotated[ChatMessages, BeforeValidator(_messages)] = Field(
        validation_alias=AliasChoices("messages", "prompt")
    )
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        None, description="Left out: whatever the context has left after the prompt."
    )
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        None, description="The newer name of max_tokens, which it wins over."
    )
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = Field(False, description="Begin with the last message, where that is the assistant's.")
    add_generation_prompt: bool = Field(True, description="End the prompt where the assistant's turn begins.")
    continue_final_message: bool = Field(
        False, description="Go on inside the last message instead of beginning a new turn."
    )
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64), BeforeValidator(_no_reserved_keys)] = Field(
        {}, description="Variables for the model's template, such as enable_thinking."
    )
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_DOCUMENTS)] = Field(
        [], description="Texts with titles, for templates that know what to do with them."
    )
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        [], description="Functions to be called."
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="Left out: auto with tools. required, a named function, and allowed_tools with the mode required "
        "are enforced.",
    )
    parallel_tool_calls: bool = Field(True, description="Whether one turn may make several calls.")
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = Field(
        None, description="For the template; none asks for no reasoning."
    )
    include_reasoning: bool = Field(True, description="Whether the answer shows the reasoning.")
    thinking_token_budget: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        None, description="Tokens of reasoning after which it is ended."
    )

    @property
    def active_tools(self) -> list[Tool]:
        """Those that may be called in this turn."""
        names = self.chosen_names
        if names is not None:
            return [tool for tool in self.tools if tool.function.name in names]
        return [] if self.tool_choice == "none" else self.tools

    @property
    def chosen_names(self) -> list[str] | None:
        """The functions that `tool_choice` names; None where it names none."""
        match self.tool_choice:
            case NamedToolChoice() as choice:
                return [choice.function.name]
            case AllowedToolsChoice() as choice:
                return [tool.function.name for tool in choice.allowed_tools.tools]
            case _:
                return None

    @property
    def is_call_enforced(self) -> bool:
        """Whether the answer has to be a call."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolsChoice):
            return choice.allowed_tools.mode == "required"
        return choice not in (None, "none", "auto")

    def without_effect(self, params: SamplingParams) -> list[str]:
        """Fields that are set and change nothing for this model; `params` are made of this request."""
        is_lost = self.thinking_token_budget is not None and params.thinking_budget is None
        return ["thinking_token_budget"] if is_lost else []

    def template_variables(self) -> dict[str, Any]:
        """What the template gets besides the messages."""
        variables = dict(self.chat_template_kwargs)
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        if self.reasoning_effort == "none":
            # The two names that templates know this by.
            variables = {"enable_thinking": False, "thinking": False} | variables
        if self.documents:
            variables["documents"] = self.documents
        if self.active_tools:
            variables["tools"] = [
                tool.model_dump(exclude_unset=True) | {"type": tool.type} for tool in self.active_tools
            ]
        return variables

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as a template expects them."""
        return [message.model_dump(exclude_unset=True) | {"content": message.content} for message in self.messages]

    @property
    def echoed(self) -> str:
        """What the answer begins with."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    @property
    def most_tokens(self) -> int | None:
        """How many may be generated; `max_completion_tokens` wins over `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def name_of(self, parameter: str | None) -> str | None:
        if parameter == "structured_outputs" and self.constraint() is None:
            return "tools"
        if parameter == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return super().name_of(parameter)

    def chat_sampling_params(self) -> SamplingParams:
        """The engine's parameters."""
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling_params(max_tokens=self.most_tokens, logprobs=logprobs)
