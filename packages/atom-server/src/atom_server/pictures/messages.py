"""What is said between a decoder and the process that asks it, as MessagePack."""

from __future__ import annotations

import msgspec

from atom_core.messages import Image
from atom_core.models import VisionSpec


class Question(msgspec.Struct, frozen=True):
    """A picture to decode.

    Attributes:
        file: its file, in base64 where `is_base64`.
        num_bytes, num_pixels: the most that the file and the picture may have.
        spec: what the model takes.
    """

    file: bytes
    is_base64: bool
    num_bytes: int
    num_pixels: int
    spec: VisionSpec


class Answer(msgspec.Struct, frozen=True):
    """The picture, or why there is none."""

    image: Image | None = None
    error: str = ""


QUESTION = msgspec.msgpack.Decoder(Question)
ANSWER = msgspec.msgpack.Decoder(Answer)
ENCODER = msgspec.msgpack.Encoder()
