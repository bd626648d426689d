"""Pictures of prompts."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec


class Image(msgspec.Struct, frozen=True):
    """A picture that was brought to a size that the model takes (`VisionSpec.fitted`).

    Attributes:
        height, width: in pixels.
        pixels: red, green and blue of each pixel, 0 to 255, row by row: ``3 * height * width`` bytes of each frame.
        digest: a hash of all else that is said here; equal pictures have equal ones.
        num_frames: frames of a video that are seen at once; 1 of a picture that stands still, and of a rest of a video.
        lag: how far it stands behind the first picture of its video in time, where it goes on one without a text
            between (`VideoSpec.lags`).
    """

    height: int
    width: int
    pixels: bytes
    digest: bytes
    num_frames: int = 1
    lag: int | None = None

    @classmethod
    def of(cls, height: int, width: int, pixels: bytes) -> Image:
        """A picture with its digest.

        Raises:
            ValueError: there are not 3 bytes for each pixel.
        """
        if len(pixels) != 3 * height * width:
            raise ValueError(f"{width} x {height} pixels have {3 * height * width} bytes, not {len(pixels)}")
        digest = hashlib.sha256(f"{height} {width} ".encode() + pixels).digest()
        return cls(height, width, pixels, digest)

    @classmethod
    def of_video(cls, height: int, width: int, frames: Sequence[bytes], lag: int | None) -> Image:
        """So many frames of a video, of `pixels` as above each, with their digest."""
        about = f"{height} {width} {len(frames)} {lag} "
        pixels = b"".join(frames)
        return cls(height, width, pixels, hashlib.sha256(about.encode() + pixels).digest(), len(frames), lag)


class Video(msgspec.Struct, frozen=True):
    """The frames of a video that are seen.

    Attributes:
        images: pictures of some frames each, in order.
        seconds: when each was.
    """

    images: tuple[Image, ...]
    seconds: tuple[float, ...]


class PlacedImage(msgspec.Struct, frozen=True):
    """A picture and the tokens of the prompt in whose place its embeddings stand.

    Attributes:
        image: the picture.
        first_token: the first of these tokens in the prompt.
        num_tokens: how many there are, one after the other.
        depth: how often as much is encoded for them, see `VisionSpec.depth`.
    """

    image: Image
    first_token: int
    num_tokens: int
    depth: int = 1

    @property
    def end(self) -> int:
        """The first token of the prompt behind it."""
        return self.first_token + self.num_tokens

    @property
    def num_encoded(self) -> int:
        """It takes so many of the tokens of pictures that a step has room to encode."""
        return self.num_tokens * self.depth


def images_within(images: Sequence[PlacedImage], first: int, end: int) -> Sequence[PlacedImage]:
    """Those of a prompt's pictures, which are in order, that have one of the tokens ``first`` to ``end - 1``."""
    begin = bisect_right(images, first, key=lambda placed: placed.end)
    return images[begin : bisect_left(images, end, lo=begin, key=lambda placed: placed.first_token)]
