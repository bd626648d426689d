"""What is said between a decoder and the process that asks it, as MessagePack."""

from __future__ import annotations

import msgspec

from atom_core.messages import Image, Video
from atom_core.models import VisionSpec


class Question(msgspec.Struct, frozen=True):
    """A picture or a video to decode.

    Attributes:
        file: its file, in base64 where `is_base64`.
        num_bytes, num_pixels: the most that the file and the picture may have.
        spec: what the model takes.
        num_tokens: the most tokens of a video.
        is_of_frames: the file has the frames of a video in base64, separated by commas.
    """

    file: bytes
    is_base64: bool
    num_bytes: int
    num_pixels: int
    spec: VisionSpec
    num_tokens: int = 0
    is_of_frames: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The picture or the video, or why there is none."""

    image: Image | None = None
    video: Video | None = None
    error: str = ""


QUESTION = msgspec.msgpack.Decoder(Question)
ANSWER = msgspec.msgpack.Decoder(Answer)
ENCODER = msgspec.msgpack.Encoder()
