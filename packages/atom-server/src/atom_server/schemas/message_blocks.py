"""The turns of Anthropic's Messages API: blocks of text, thinking, tool use and tool results, as messages of a chat."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from atom_server.schemas.fields.content import (
    Content,
    FileSource,
    Part,
    TextPart,
    content_of,
    image_of_message,
    image_part,
    text_part,
    url_of_source,
    video_of_message,
    video_part,
)
from atom_server.schemas.fields.strict_model import OpenModel

_ENCODER = json.JSONEncoder(ensure_ascii=False)
MAX_BLOCKS = 4096
# Each becomes an object of its own, in microseconds. Messages of many blocks each would take a tenth of a second.
MAX_BLOCKS_OF_ALL = 8192
ToolUseId = Annotated[str, Field(min_length=1, max_length=256)]


def text_blocks(value: Any) -> Any:
    """A string as one block of text."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def count_blocks(messages: Any) -> Any:
    """Refuse messages that have too many blocks together."""
    if isinstance(messages, list):
        contents = (message.get("content") for message in messages if isinstance(message, dict))
        number = sum(len(content) for content in contents if isinstance(content, list))
        if number > MAX_BLOCKS_OF_ALL:
            raise ValueError(f"must have at most {MAX_BLOCKS_OF_ALL} blocks of content together, not {number}")
    return messages


class TextBlock(OpenModel):
    """Text."""

    type: Literal["text"]
    text: str


Source = Annotated[str, BeforeValidator(url_of_source, json_schema_input_type=FileSource)]


class ImageBlock(OpenModel):
    """A picture, where the model sees. `source` becomes its URL."""

    type: Literal["image"]
    source: Source


class VideoBlock(OpenModel):
    """A video, where the model sees any; Anthropic's API has none. `source` becomes its URL."""

    type: Literal["video"]
    source: Source


class ThinkingBlock(OpenModel):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(OpenModel):
    """Thinking that cannot be read here; left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(OpenModel):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: ToolUseId
    name: Annotated[str, Field(min_length=1, max_length=128)]
    input: dict[str, Any]


def _read_result(value: Any) -> Any:
    return content_of(value, {"text": text_part, "image": image_of_message, "video": video_of_message})


class ToolResultBlock(OpenModel):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: ToolUseId
    content: Annotated[
        Content, BeforeValidator(_read_result, json_schema_input_type=str | list[TextPart | ImageBlock | VideoBlock])
    ] = Field("", description="A string, or a list of blocks of type text, and image or video where the model sees.")
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ImageBlock | VideoBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


_Shown = TextBlock | ImageBlock | VideoBlock
Blocks = Annotated[list[Block], Field(fail_fast=True, max_length=MAX_BLOCKS)]


class InputMessage(OpenModel):
    """One turn."""

    role: Literal["user", "assistant"]
    content: Annotated[Blocks, BeforeValidator(text_blocks, json_schema_input_type=str | Blocks)] = Field(
        description="A string, or a list of blocks of type text, image, video, thinking, tool_use or tool_result."
    )

    @property
    def text(self) -> str:
        """The text of its blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def parts(self) -> Content:
        """Its text, or its text, pictures and videos in order."""
        parts = [_part(block) for block in self.content if isinstance(block, _Shown)]
        return self.text if all(part["type"] == "text" for part in parts) else parts

    @property
    def has_calls(self) -> bool:
        """Whether the assistant called a tool."""
        return any(isinstance(block, ToolUseBlock) for block in self.content)


def chat_messages(turns: list[InputMessage]) -> list[dict[str, Any]]:
    """The turns as messages of a chat: each tool result is a message of its own, before the text of its turn."""
    names = {block.id: block.name for turn in turns for block in turn.content if isinstance(block, ToolUseBlock)}
    messages: list[dict[str, Any]] = []
    for turn in turns:
        results = [block for block in turn.content if isinstance(block, ToolResultBlock)]
        for block in results:
            result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
            name = names.get(block.tool_use_id)
            messages.append(result if name is None else {**result, "name": name})
        if turn.role == "assistant" or turn.parts or not results:
            messages.append(_chat_message(turn))
    return messages


def _chat_message(turn: InputMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.parts}
    if calls := [_chat_call(block) for block in turn.content if isinstance(block, ToolUseBlock)]:
        message["tool_calls"] = calls
    if thoughts := [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]:
        message["reasoning_content"] = "".join(thoughts)
    return message


def _part(block: _Shown) -> Part:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return image_part(block.source) if isinstance(block, ImageBlock) else video_part(block.source)


def _chat_call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = _ENCODER.encode(block.input)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
