"""Content of messages: text, or text and pictures in order. Each API has its own parts; all become those of chats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

Part = dict[str, Any]
Read = Callable[[Part], Part]
AN_ADDRESS = "its address at a server of --allowed-media-domains"
A_VIDEO = f"A data: URL with the video in base64, or with its frames (data:video/jpeg;base64,...,...), or {AN_ADDRESS}."


class ImageURL(BaseModel):
    """Where a picture is."""

    url: str = Field(description=f"A data: URL with the picture in base64, or {AN_ADDRESS}.")
    detail: str | None = Field(None, description="Ignored: a picture is brought to the size that the model takes.")


class FileSource(BaseModel):
    """A picture or a video in the Messages API."""

    type: Literal["base64", "url"]
    media_type: str | None = None
    data: str | None = Field(None, description="The file in base64.")
    url: str | None = Field(None, description=f"A data: URL, or {AN_ADDRESS}.")


class TextPart(BaseModel):
    """A part that is text."""

    type: Literal["text"]
    text: str


class ImagePart(BaseModel):
    """A part that is a picture."""

    type: Literal["image_url"]
    image_url: ImageURL


class VideoURL(BaseModel):
    """Where a video is."""

    url: str = Field(description=A_VIDEO)


class VideoPart(BaseModel):
    """A part that is a video."""

    type: Literal["video_url"]
    video_url: VideoURL


def content_of(value: Any, kinds: Mapping[str, Read]) -> Any:
    """A list of parts as those of chats, or as one text where all are; anything else as it is.

    Args:
        kinds: what reads a part, by its type.

    Raises:
        ValueError: a part is none of these.
    """
    if not isinstance(value, list):
        return value
    parts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise ValueError("each part must be an object with a type")
        if kind not in kinds:
            allowed = " or ".join(map(repr, kinds))
            raise ValueError(f"parts must be of type {allowed}; {kind[:32]!r} is not supported")
        read = kinds[kind]
        parts.append(read(part))
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def text_part(part: Part) -> Part:
    """A part with text, whatever its type is called."""
    if not isinstance(part.get("text"), str):
        raise ValueError(f"a part of type {part['type']!r} must have a string 'text'")
    return {"type": "text", "text": part["text"]}


def image_part(url: str) -> Part:
    """The part of a chat that is the picture of `url`."""
    return {"type": "image_url", "image_url": {"url": url}}


def video_part(url: str) -> Part:
    """The part of a chat that is the video of `url`."""
    return {"type": "video_url", "video_url": {"url": url}}


def image_of_chat(part: Part) -> Part:
    """``{"type": "image_url", "image_url": {"url": ...}}``, or with the URL alone."""
    return image_part(_url_of_chat(part, "image_url"))


def video_of_chat(part: Part) -> Part:
    """``{"type": "video_url", "video_url": {"url": ...}}``, or with the URL alone."""
    return video_part(_url_of_chat(part, "video_url"))


def _url_of_chat(part: Part, name: str) -> str:
    given = part.get(name)
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise ValueError(f"a part of type {name!r} must have an object {name!r} with a string 'url'")
    return url


def url_of_source(source: Any) -> str:
    """The source of a file: ``{"type": "base64", "media_type": ..., "data": ...}``, or one of type "url"."""
    given = source if isinstance(source, dict) else {}
    url, media_type, data = (given.get(name) for name in ("url", "media_type", "data"))
    if given.get("type") == "url" and isinstance(url, str):
        return url
    if given.get("type") == "base64" and isinstance(media_type, str) and isinstance(data, str):
        return f"data:{media_type};base64,{data}"
    raise ValueError("a picture or a video must have a source of type 'base64', with 'media_type' and 'data'")


def image_of_message(block: Part) -> Part:
    """``{"type": "image", "source": ...}``."""
    return image_part(url_of_source(block.get("source")))


def video_of_message(block: Part) -> Part:
    """``{"type": "video", "source": ...}``."""
    return video_part(url_of_source(block.get("source")))


def image_of_response(part: Part) -> Part:
    """``{"type": "input_image", "image_url": ...}``."""
    return image_part(_url_of_response(part, "image_url"))


def video_of_response(part: Part) -> Part:
    """``{"type": "input_video", "video_url": ...}``."""
    return video_part(_url_of_response(part, "video_url"))


def _url_of_response(part: Part, name: str) -> str:
    url = part.get(name)
    if not isinstance(url, str):
        raise ValueError(f"a part of type {part['type']!r} must have a string {name!r}; there are no files here")
    return url


def read_text(value: Any) -> Any:
    """Parts of text, joined."""
    return content_of(value, {"text": text_part})


def _read_chat(value: Any) -> Any:
    return content_of(value, {"text": text_part, "image_url": image_of_chat, "video_url": video_of_chat})


Content = str | list[Part]
ChatContent = Annotated[
    Content, BeforeValidator(_read_chat, json_schema_input_type=str | list[TextPart | ImagePart | VideoPart])
]


class Shown(NamedTuple):
    """Messages as chat templates expect them, and the pictures and videos that these have places for.

    Attributes:
        messages: the messages of a chat; a picture is ``{"type": "image"}``, a video ``{"type": "video"}``.
        urls: where the pictures are, in order.
        videos: where the videos are, in order.
    """

    messages: list[dict[str, Any]]
    urls: list[str]
    videos: list[str]

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]]) -> Shown:
        """Take the pictures out of messages."""
        urls: list[str] = []
        videos: list[str] = []

        def shown(part: Part) -> Part:
            if part["type"] == "text":
                return part
            if part["type"] == "video_url":
                videos.append(part["video_url"]["url"])
                return {"type": "video"}
            urls.append(part["image_url"]["url"])
            return {"type": "image"}

        taken = [
            {**message, "content": [shown(part) for part in content]}
            if isinstance(content := message.get("content"), list)
            else dict(message)
            for message in messages
        ]
        return cls(taken, urls, videos)


def shown_with(text: str, shown: Sequence[Part]) -> Content:
    """A text behind pictures and videos; the text alone without any."""
    return [*shown, {"type": "text", "text": text}] if shown else text


def text_of(content: Content) -> str:
    """The text of a content, joined."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")
