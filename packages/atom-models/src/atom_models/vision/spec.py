"""`VisionSpec`: what a host needs to know of a model that sees. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atom_models.vision.videos import VideoDefaults, VideoSpec


@dataclass(frozen=True)
class PictureDefaults:
    """What a family's processor does where no file says so; the fields are those of `VisionSpec`."""

    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    video: VideoDefaults | None = None


@dataclass(frozen=True)
class VisionSpec:
    """Sizes and tokens of pictures.

    Attributes:
        image_token_id: the token in whose place an embedding of a picture stands, as often as `num_tokens` says.
        start_token_id, end_token_id: the tokens around a picture, for messages; a prompt brings them itself.
        patch_size: pixels on each side of a patch.
        merge_size: patches on each side of a square that becomes one token.
        min_pixels, max_pixels: a picture is made larger or smaller until it has so many.
        mean, std: what is taken off pixels between 0 and 1, and what they are divided by: red, green and blue.
        has_threefold_positions: tokens have a position in time, height and width each.
        video: which videos are seen; None where none are.
    """

    image_token_id: int
    start_token_id: int
    end_token_id: int
    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    has_threefold_positions: bool = True
    video: VideoSpec | None = None

    @property
    def unit(self) -> int:
        """Pixels on each side of the square of one token."""
        return self.patch_size * self.merge_size

    @property
    def placeholders(self) -> tuple[int, ...]:
        """The tokens in whose place embeddings stand: of pictures, and of videos."""
        return (self.image_token_id,) if self.video is None else (self.image_token_id, self.video.token_id)

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """The height and width to which a picture is brought: multiples of `unit`, about as wide as high as before.

        As the processors of Qwen's models compute it.

        Raises:
            ValueError: one side is more than 200 times the other.
        """
        if max(height, width) > 200 * min(height, width):
            raise ValueError(f"a picture of {width} x {height} pixels: one side is more than 200 times the other")
        unit = self.unit
        # A side that comes to nothing grows below.
        rows, columns = (round(side / unit) * unit for side in (height, width))
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows, columns = (max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = (math.ceil(side * grow / unit) * unit for side in (height, width))
        return rows, columns

    def num_tokens(self, height: int, width: int) -> int:
        """Embeddings of a picture that has been fitted."""
        return (height // self.unit) * (width // self.unit)
