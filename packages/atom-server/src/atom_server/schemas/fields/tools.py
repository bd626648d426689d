"""``tools`` and ``tool_choice``, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from atom_server.schemas.fields.strict_model import OpenModel, StrictModel

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]


class FunctionDefinition(OpenModel):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    name: FunctionName
    description: str | None = Field(None, max_length=65_536)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(OpenModel):
    """A tool; functions are the only type."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionReference(StrictModel):
    """Which function."""

    name: FunctionName


class NamedToolChoice(StrictModel):
    """The one function that has to be called."""

    type: Literal["function"] = "function"
    function: FunctionReference


class AllowedTools(StrictModel):
    """Those of the tools that may be called, and whether one of them has to be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictModel):
    """Some of the tools; the model is told of these alone."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def kind_of_choice(value: Any) -> str:
    """Which of the forms of a choice is meant: an error is then told of that one alone."""
    if isinstance(value, str):
        return "word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "some" if kind == "allowed_tools" else "one"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedToolChoice, Tag("one")]
    | Annotated[AllowedToolsChoice, Tag("some")],
    Discriminator(kind_of_choice),
]
