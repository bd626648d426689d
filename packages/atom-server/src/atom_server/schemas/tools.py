"""``tools`` and ``tool_choice``, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]


class FunctionDefinition(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: FunctionName
    description: str | None = Field(None, max_length=65_536)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool; functions are the only type."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionReference(BaseModel):
    """Which function."""

    model_config = ConfigDict(strict=True)

    name: FunctionName


class NamedToolChoice(BaseModel):
    """The one function that has to be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"] = "function"
    function: FunctionReference


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
