"""The items that a response is made from and of: messages, reasoning, calls and their results, as a chat's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field

from atom_server.schemas.fields.content import (
    A_VIDEO,
    AN_ADDRESS,
    Content,
    Part,
    content_of,
    image_of_response,
    text_part,
    video_of_response,
)
from atom_server.schemas.fields.strict_model import OpenModel

_TextType = Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
_TEXT_PARTS = get_args(_TextType)
Identifier = Annotated[str, Field(min_length=1, max_length=256)]


def _read_text(value: Any) -> Any:
    return content_of(value, dict.fromkeys(_TEXT_PARTS, text_part))


def _read_content(value: Any) -> Any:
    texts = dict.fromkeys(_TEXT_PARTS, text_part)
    return content_of(value, texts | {"input_image": image_of_response, "input_video": video_of_response})


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


class ImagePart(BaseModel):
    """A picture, where the model sees."""

    type: Literal["input_image"]
    image_url: str = Field(description=f"A data: URL with the picture in base64, or {AN_ADDRESS}.")
    detail: str | None = Field(None, description="Ignored: a picture is brought to the size that the model takes.")


class VideoPart(BaseModel):
    """A video, where the model sees any; OpenAI's API has none."""

    type: Literal["input_video"]
    video_url: str = Field(description=A_VIDEO)


TextOrParts = Annotated[str, BeforeValidator(_read_text, json_schema_input_type=str | list[TextPart])]
MixedContent = Annotated[
    Content, BeforeValidator(_read_content, json_schema_input_type=str | list[TextPart | ImagePart | VideoPart])
]


class MessageItem(OpenModel):
    """One turn of the input."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: MixedContent = Field(
        description="A string, or a list of parts of type input_text, output_text, or input_image and input_video "
        "where the model sees."
    )


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
    output: MixedContent


Item = Annotated[MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem, Field(discriminator="type")]


def stored_parts(content: Content, text_type: str) -> list[dict[str, Any]]:
    """A content as clients expect parts to be listed; texts get this type."""
    if isinstance(content, str):
        return [{"type": text_type, "text": content}]
    return [_stored_part(part, text_type) for part in content]


def _stored_part(part: Part, text_type: str) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": text_type, "text": part["text"]}
    if part["type"] == "video_url":
        return {"type": "input_video", "video_url": part["video_url"]["url"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}


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
