"""`VideoSpec`: how a video becomes pictures of several frames each. Torch-free.

A tower sees so many frames at once as its patches have (two), and each of these by itself: what follows takes each as a
picture of so many frames. Between them Qwen3-VL has a text that says when they were; Qwen2.5-VL has positions in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VideoDefaults:
    """What a family does, and what its processor does where no file says so; the fields are those of `VideoSpec`."""

    min_pixels: int
    max_pixels: int
    counts_together: bool
    are_spread: bool
    has_timestamps: bool
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    positions_per_second: int = 0


QWEN3 = VideoDefaults(131_072, 786_432, counts_together=True, are_spread=True, has_timestamps=True)
QWEN2 = VideoDefaults(
    100_352, 602_112, counts_together=False, are_spread=False, has_timestamps=False, positions_per_second=4
)


@dataclass(frozen=True)
class VideoSpec:
    """Which frames of a video are seen, and how.

    Attributes:
        token_id: the token in whose place an embedding of a video stands.
        patch_frames: frames that become one picture.
        fps: frames that are taken of each second.
        min_frames, max_frames: the fewest and the most frames that are taken of a video that has as many.
        min_pixels, max_pixels: frames are made larger or smaller until they have so many: all together, or each.
        counts_together: these are of all frames together.
        are_spread: frames are taken from the first to the last one, in equal steps; otherwise the last step is behind
            the last one.
        has_timestamps: a text before each picture says when it was.
        positions_per_second: steps in time between pictures, where positions say when they were.
    """

    token_id: int
    patch_frames: int
    fps: float
    min_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int
    counts_together: bool
    are_spread: bool
    has_timestamps: bool
    positions_per_second: int

    def sampled(self, num_frames: int, fps: float) -> list[int]:
        """The frames that are taken of a video with so many, at so many a second.

        As the processors of Qwen's models choose them.

        Raises:
            ValueError: it has fewer than one picture needs.
        """
        import numpy as np

        self._check_length(num_frames)
        wanted = num_frames / fps * self.fps
        if self.are_spread:
            count = min(max(int(wanted), self.min_frames), self.max_frames, num_frames)
            return np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
        step = self.patch_frames
        most = min(self.max_frames, num_frames) // step * step
        count = max(step, math.floor(min(max(wanted, self.min_frames), most) / step) * step)
        places = (np.arange(math.ceil(num_frames / (num_frames / count))) * (num_frames / count)).astype(np.float32)
        return places.astype(int).tolist()

    def fitted(self, num_frames: int, height: int, width: int, *, unit: int, most_pixels: int) -> tuple[int, int]:
        """The height and width to which each of so many frames is brought: multiples of `unit`.

        As the processors of Qwen's models compute it, but that no frame has more than `most_pixels`.

        Raises:
            ValueError: there are fewer frames than one picture needs; one side is more than 200 times the other.
        """
        self._check_length(num_frames)
        count, rounded = 1, 1
        if self.counts_together:
            count, rounded = num_frames, round(num_frames / self.patch_frames) * self.patch_frames
            if min(height, width) < unit:
                scale = max(unit / height, unit / width)
                height, width = int(height * scale), int(width * scale)
        if max(height, width) > 200 * min(height, width):
            raise ValueError(f"a video of {width} x {height} pixels: one side is more than 200 times the other")
        rows, columns = (round(side / unit) * unit for side in (height, width))
        most = min(self.max_pixels, most_pixels * rounded)
        if rounded * rows * columns > most:
            shrink = math.sqrt(count * height * width / most)
            rows, columns = (max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))
        elif rounded * rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (count * height * width))
            rows, columns = (math.ceil(side * grow / unit) * unit for side in (height, width))
        while rows * columns > most_pixels:
            rows, columns = (rows - unit, columns) if rows > columns else (rows, columns - unit)
        return rows, columns

    def num_pictures(self, num_frames: int) -> int:
        """Pictures of so many frames: the last frame is repeated where some are missing."""
        return -(-num_frames // self.patch_frames)

    def seconds(self, frames: Sequence[int], fps: float) -> list[float]:
        """When each picture was, given the places of its frames in a video of so many frames a second."""
        filled = [*frames, *[frames[-1]] * (-len(frames) % self.patch_frames)]
        ends = zip(filled[:: self.patch_frames], filled[self.patch_frames - 1 :: self.patch_frames], strict=True)
        return [(first / fps + last / fps) / 2 for first, last in ends]

    def lags(self, num_frames: int, taken_fps: float) -> list[int | None]:
        """How far each picture stands behind the first one in time; None of the first, and where texts say it.

        Args:
            num_frames: frames that were taken.
            taken_fps: how many of a second were.
        """
        import numpy as np

        count = self.num_pictures(num_frames)
        if self.has_timestamps:
            return [None] * count
        step = np.float32(self.positions_per_second) * np.float32(self.patch_frames / taken_fps)
        return [None, *(int(np.float32(index) * step) for index in range(1, count))]

    def _check_length(self, num_frames: int) -> None:
        if num_frames < self.patch_frames:
            raise ValueError(f"a video of {num_frames} frames; it must have {self.patch_frames} at least")
