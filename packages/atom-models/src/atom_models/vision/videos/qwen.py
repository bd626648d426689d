"""The rules of Qwen's models: Qwen3-VL says in texts when a picture was, Qwen2.5-VL in positions.

The formulas are those of `transformers`: `Qwen3VLVideoProcessor`, `Qwen2VLVideoProcessor` and their processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atom_models.vision.videos.marks import VideoMarks
from atom_models.vision.videos.rules import FrameSize

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.videos.spec import VideoSpec


class Qwen2Rules:
    """Each frame has a bound of pixels, and the last step between frames is behind the last one."""

    has_timestamps = False
    pools_frames = False

    def sampled(self, video: VideoSpec, num_frames: int, fps: float) -> list[int]:
        import numpy as np

        step = video.picture_frames
        most = min(video.max_frames, num_frames) // step * step
        wanted = min(max(num_frames / fps * video.fps, video.min_frames), most)
        count = max(step, math.floor(wanted / step) * step)
        places = (np.arange(math.ceil(num_frames / (num_frames / count))) * (num_frames / count)).astype(np.float32)
        return places.astype(int).tolist()

    def sizes(
        self, video: VideoSpec, pictures: Sequence[int], height: int, width: int, seen: VisionSpec
    ) -> list[FrameSize]:
        size = _brought_within(video, 1, 1, height, width, seen)
        return [FrameSize(size, size)] * len(pictures)

    def most_encoded(self, video: VideoSpec, seen: VisionSpec) -> int:
        return seen.most_tokens

    def second(self, frames: Sequence[int], fps: float) -> float:
        return (frames[0] / fps + frames[-1] / fps) / 2

    def steps_in_time(self, video: VideoSpec, count: int, taken_fps: float) -> list[int | None]:
        import numpy as np

        step = np.float32(video.positions_per_second) * np.float32(video.picture_frames / taken_fps)
        return [None, *(int(np.float32(index) * step) for index in range(1, count))]

    def marks(self, start: str | None, token: str | None, end: str | None) -> VideoMarks | None:
        return VideoMarks(start + token + end, start, token, end) if start and token and end else None

    def written(self, video: VideoSpec, seconds: Sequence[float], marks: VideoMarks) -> str:
        return marks.start + marks.token * len(seconds) + marks.end


class Qwen3Rules(Qwen2Rules):
    """All frames together have a bound of pixels, and they are taken from the first to the last one."""

    has_timestamps = True

    def sampled(self, video: VideoSpec, num_frames: int, fps: float) -> list[int]:
        import numpy as np

        count = min(max(int(num_frames / fps * video.fps), video.min_frames), video.max_frames, num_frames)
        return np.linspace(0, num_frames - 1, count).round().astype(int).tolist()

    def sizes(
        self, video: VideoSpec, pictures: Sequence[int], height: int, width: int, seen: VisionSpec
    ) -> list[FrameSize]:
        count, step = sum(pictures), video.picture_frames
        if min(height, width) < seen.unit:
            scale = max(seen.unit / height, seen.unit / width)
            height, width = int(height * scale), int(width * scale)
        size = _brought_within(video, count, round(count / step) * step, height, width, seen)
        return [FrameSize(size, size)] * len(pictures)

    def steps_in_time(self, video: VideoSpec, count: int, taken_fps: float) -> list[int | None]:
        return [None] * count

    def written(self, video: VideoSpec, seconds: Sequence[float], marks: VideoMarks) -> str:
        return "".join(f"<{second:.1f} seconds>{marks.picture}" for second in seconds)


def _brought_within(
    video: VideoSpec, count: int, rounded: int, height: int, width: int, seen: VisionSpec
) -> tuple[int, int]:
    """Both sides of frames of which `count` share the bounds, `rounded` to whole pictures.

    As the processors compute it, but that no frame has more pixels than a picture may.
    """
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"a video of {width} x {height} pixels: one side is more than 200 times the other")
    unit, most_pixels = seen.unit, seen.most_pixels
    rows, columns = (round(side / unit) * unit for side in (height, width))
    most = min(video.max_pixels, most_pixels * rounded)
    if rounded * rows * columns > most:
        shrink = math.sqrt(count * height * width / most)
        rows, columns = (max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))
    elif rounded * rows * columns < video.min_pixels:
        grow = math.sqrt(video.min_pixels / (count * height * width))
        rows, columns = (math.ceil(side * grow / unit) * unit for side in (height, width))
    while rows * columns > most_pixels:
        rows, columns = (rows - unit, columns) if rows > columns else (rows, columns - unit)
    return rows, columns
