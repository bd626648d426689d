"""The items that a response is made from and of: messages, reasoning, calls and their results, as a chat's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field

from atom_server.schemas.fields.strict_model import OpenModel

_TextType = Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
_TEXT_PARTS = get_args(_TextType)
Identifier = Annotated[str, Field(min_length=1, max_length=256)]


def text_of_parts(value: Any) -> Any:
    """A list of parts of text, joined."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError("parts must be of type 'input_text' or 'output_text', with a string 'text'")
        texts.append(part["text"])
    return "".join(texts)


def typed_items(value: Any) -> Any:
    """A string as the user's message; items without a type are messages."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        return value
    return [{"type": "message", **item} if isinstance(item, dict) else item for item in value]


class TextPart(BaseModel):
    """A part of an item's content."""

    type: _TextType
    text: str


TextOrParts = Annotated[str, BeforeValidator(text_of_parts, json_schema_input_type=str | list[TextPart])]


class MessageItem(OpenModel):
    """One turn of the input."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts = Field(description="A string, or a list of parts of type input_text or output_text.")


class ReasoningItem(OpenModel):
    """What the assistant thought. Encrypted reasoning cannot be read here and is left out."""

    type: Literal["reasoning"]
    content: TextOrParts | None = None
    summary: TextOrParts = ""

    @property
    def text(self) -> str:
        """All that is known of it."""
        return self.content or self.summary


class FunctionCallItem(OpenModel):
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: Identifier
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: str


class FunctionCallOutputItem(OpenModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Identifier
    output: TextOrParts


Item = Annotated[MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem, Field(discriminator="type")]


def chat_messages(items: Iterable[BaseModel]) -> list[dict[str, Any]]:
    """The items as messages of a chat: the assistant's reasoning, text and calls in a row are one message."""
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    turn: dict[str, Any] | None = None
    for item in items:
        if isinstance(item, FunctionCallOutputItem):
            turn = None
            result = {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
            messages.append(result | ({"name": names[item.call_id]} if item.call_id in names else {}))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            turn = None
            messages.append({"role": item.role, "content": item.content})
        else:
            if turn is None or _begins_a_turn(item, turn):
                turn = {"role": "assistant", "content": None}
                messages.append(turn)
            _add(item, turn, names)
    return messages


def _begins_a_turn(item: BaseModel, turn: Mapping[str, Any]) -> bool:
    """Whether there is no place for `item` in the turn."""
    if isinstance(item, FunctionCallItem):
        return False
    has_said = turn["content"] is not None or "tool_calls" in turn
    return has_said if isinstance(item, MessageItem) else has_said or "reasoning_content" in turn


def _add(item: BaseModel, turn: dict[str, Any], names: dict[str, str]) -> None:
    if isinstance(item, FunctionCallItem):
        names[item.call_id] = item.name
        function = {"name": item.name, "arguments": item.arguments}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, ReasoningItem):
        turn["reasoning_content"] = item.text
    elif isinstance(item, MessageItem):
        turn["content"] = item.content
