"""`VisionSpec`: what a host needs to know of a model that sees. Torch-free."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from atom_models.vision.sizes import Resample, Resizing, size_of
from atom_models.vision.videos import VideoDefaults, VideoSpec


@dataclass(frozen=True)
class PictureDefaults:
    """What a family's processor does where no file says so; the fields are those of `VisionSpec`."""

    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    video: VideoDefaults | None = None
    max_side: int = 0


@dataclass(frozen=True)
class VisionSpec:
    """Sizes and tokens of pictures.

    Attributes:
        image_token_id: the token in whose place an embedding of a picture stands.
        start_token_id, end_token_id: the tokens around a picture, for messages; a prompt brings them itself, but for
            the end of a picture whose rows are told apart. None where the family has none.
        patch_size: pixels on each side of a patch.
        merge_size: patches on each side of a square that becomes one token.
        min_pixels, max_pixels: a picture is made larger or smaller until it has so many.
        mean, std: what is taken off pixels between 0 and 1, and what they are divided by: red, green and blue.
        has_threefold_positions: tokens have a position in time, height and width each.
        resizing: how a picture gets its size, see `atom_models.vision.sizes`.
        max_side: the most pixels of a side, before it is brought to a multiple of `unit`; 0 where there is no bound.
            Where sizes are fixed, each side has so many; where pictures are cropped, their shorter side.
        row_token_id: the token between the rows of a picture, behind the last of which `end_token_id` stands; None
            where nothing stands between them.
        max_tokens: the most tokens of a picture, where a host bounds them; 0 where it does not.
        video: which videos are seen; None where none are.
        sees_ahead: tokens of a picture see all of it, not only what lies before them: a step has all of them, or none.
        written_around: what stands before the start and behind the end of a picture, where a template writes the start
            alone; empty where it writes all that a picture needs.
        resample: the filter by which pictures are resized.
        stands_alone: a picture is a prompt of its own, and one token of it, which gives its vector.
    """

    image_token_id: int
    start_token_id: int | None
    end_token_id: int | None
    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    has_threefold_positions: bool = True
    resizing: Resizing = "rounded"
    max_side: int = 0
    row_token_id: int | None = None
    max_tokens: int = 0
    video: VideoSpec | None = None
    sees_ahead: bool = False
    written_around: str = ""
    resample: Resample = "bicubic"
    stands_alone: bool = False

    @property
    def unit(self) -> int:
        """Pixels on each side of the square of one token."""
        return self.patch_size * self.merge_size

    @property
    def has_sizes(self) -> bool:
        """Pictures have sizes of their own, and not one for all."""
        return self.resizing not in ("fixed", "cropped")

    @property
    def placeholders(self) -> tuple[int, ...]:
        """The tokens in whose place embeddings stand: of pictures, and of videos."""
        if self.video is None or self.has_one_token:
            return (self.image_token_id,)
        return (self.image_token_id, self.video.token_id)

    @property
    def has_one_token(self) -> bool:
        """Pictures and videos stand in the places of one token, which says nothing of which is where."""
        return self.video is not None and self.video.token_id == self.image_token_id

    def depth(self, num_frames: int) -> int:
        """See `VideoSpec.depth`."""
        return 1 if self.video is None else self.video.depth(num_frames)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The height and width to which a picture is resized.

        What is missing to `fitted` is made black; where there is more, it begins at `first_kept`.

        Raises:
            ValueError: one side is more than 200 times the other, and the family's own processor refuses that.
        """
        sides = size_of(height, width, self)
        while self.max_tokens and (count := self.num_tokens(*self._in_units(sides))) > self.max_tokens:
            shrink = min(0.99, math.sqrt(self.max_tokens / count))
            height, width = (max(1, math.floor(side * shrink)) for side in (height, width))
            sides = size_of(height, width, self)
        return sides

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """The height and width to which a picture is brought: multiples of `unit`, about as wide as high as before.

        As the processors of the family compute it.

        Raises:
            ValueError: as `resized`.
        """
        sides = self.resized(height, width)
        if self.has_sizes:
            return self._in_units(sides)
        # Patches that would be cut short are left out, as a convolution leaves them.
        side = self.max_side // self.unit * self.unit
        return side, side

    def first_kept(self, height: int, width: int) -> tuple[int, int]:
        """The row and the column where the fitted picture begins in one that was resized to that height and width."""
        if self.resizing != "cropped":
            return 0, 0
        return (height - self.max_side) // 2, (width - self.max_side) // 2

    def num_tokens(self, height: int, width: int) -> int:
        """Tokens of a picture that has been fitted, with those between its rows."""
        return (height // self.unit) * (width // self.unit + (self.row_token_id is not None))

    def tokens_of(self, height: int, width: int) -> list[int]:
        """The tokens themselves."""
        rows, columns = height // self.unit, width // self.unit
        if self.row_token_id is None or self.end_token_id is None:
            return [self.image_token_id] * (rows * columns)
        tokens = [*[self.image_token_id] * columns, self.row_token_id] * rows
        return [*tokens[:-1], self.end_token_id]

    @property
    def most_pixels(self) -> int:
        """No picture has more pixels, with those that it is filled up with."""
        if self.resizing != "padded":
            return self.max_pixels
        # Patches of both sides, of which parts were not counted: a, b <= longest and a * b <= all.
        longest, side = self.max_side // self.patch_size, self.merge_size
        shorter = self.max_pixels / self.patch_size**2 / longest
        return int((shorter + 1 + side) * (longest + 1 + side) / side**2) * self.unit**2

    @property
    def most_tokens(self) -> int:
        """No picture has more tokens."""
        most = self.most_pixels // self.unit**2
        if self.row_token_id is not None:
            most += -(-self.max_side // self.unit)
        return min(most, self.max_tokens or most)

    @property
    def most_encoded(self) -> int:
        """No picture takes more of what a step has room for: its tokens, as often as its `depth`."""
        return self.most_tokens if self.video is None else max(self.most_tokens, self.video.most_encoded(self))

    @property
    def least_tokens(self) -> int:
        """The smallest picture has so many."""
        return -(-self.min_pixels // self.unit**2) + (self.row_token_id is not None)

    @property
    def least_encoded(self) -> int:
        """A step that has room for as much has room for the smallest picture, and for the smallest one of a video."""
        return self.least_tokens if self.video is None else self.least_tokens * self.depth(self.video.picture_frames)

    def within(self, most_tokens: int) -> VisionSpec:
        """What is seen where a step has no room for more."""
        if most_tokens >= self.most_encoded:
            return self
        if self.resizing == "rounded":
            return dataclasses.replace(self, max_pixels=most_tokens * self.unit**2)
        return dataclasses.replace(self, max_tokens=most_tokens)

    def _in_units(self, sides: tuple[int, int]) -> tuple[int, int]:
        height, width = (-(-side // self.unit) * self.unit for side in sides)
        return height, width
