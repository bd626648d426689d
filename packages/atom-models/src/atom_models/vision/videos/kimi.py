"""The rules of Kimi-K2.5: chunks of up to four frames, each behind the time of its first one.

The formulas are those of the publisher's code (`kimi_k25_vision_processing.py` and `media_utils.py` of
`moonshotai/Kimi-K2.5`): `split_video_chunks`, `navit_resize_video` and `timestamp_as_str`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atom_models.vision.videos.marks import VideoMarks
from atom_models.vision.videos.rules import FrameSize

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.videos.spec import VideoSpec

TIMESTAMPS = ("hh:mm:ss.fff", "mm:ss.fff", "mm:ss")
"""Ways to say a time, by the names of the publisher's."""


class KimiRules:
    """Frames are taken from the first to the last one, and sized as pictures with fewer patches are."""

    has_timestamps = True
    pools_frames = True

    def sampled(self, video: VideoSpec, num_frames: int, fps: float) -> list[int]:
        import numpy as np

        wanted = max(round(num_frames * min(video.fps, fps) / fps), 1)
        return np.linspace(0, num_frames - 1, min(wanted, video.max_frames)).round().astype(int).tolist()

    def sizes(
        self, video: VideoSpec, pictures: Sequence[int], height: int, width: int, seen: VisionSpec
    ) -> list[FrameSize]:
        each = [self._as_pictures(video, count, seen) for count in pictures]
        return [FrameSize(spec.resized(height, width), spec.fitted(height, width)) for spec in each]

    def most_encoded(self, video: VideoSpec, seen: VisionSpec) -> int:
        return max(count * self._as_pictures(video, count, seen).most_tokens for count in (1, video.picture_frames))

    def second(self, frames: Sequence[int], fps: float) -> float:
        return frames[0] / fps

    def steps_in_time(self, video: VideoSpec, count: int, taken_fps: float) -> list[int | None]:
        return [None] * count

    def marks(self, start: str | None, token: str | None, end: str | None) -> VideoMarks | None:
        # `<|media_begin|>` and `<|media_end|>` are named by no config of the publisher's.
        begin = "<|media_begin|>video<|media_content|>"
        return VideoMarks("<|kimi_k25_video_placeholder|>", begin, token, "<|media_end|>") if token else None

    def written(self, video: VideoSpec, seconds: Sequence[float], marks: VideoMarks) -> str:
        return "".join(timestamp(second, video.timestamps) + marks.picture for second in seconds)

    def _as_pictures(self, video: VideoSpec, count: int, seen: VisionSpec) -> VisionSpec:
        """How the frames of a picture of so many are sized."""
        area = seen.patch_size**2
        patches = min(video.max_pixels, seen.max_pixels) // area
        if video.max_pixels_together:
            patches = min(round(video.max_pixels_together // area / count), patches)
        most_tokens = max(seen.max_tokens // count, 1) if seen.max_tokens else 0
        return dataclasses.replace(seen, max_pixels=patches * area, max_tokens=most_tokens)


def timestamp(seconds: float, form: str) -> str:
    """A time of a day as `form` asks, one of `TIMESTAMPS`.

    Thousandths are cut, and whole seconds are those of the time rounded to microseconds, as `datetime` does it.
    """
    whole = int(round(seconds, 6))
    parts = (whole // 3600 % 24, whole // 60 % 60, whole % 60)
    written = ":".join(f"{part:02d}" for part in parts[-1 - form.count(":") :])
    return f"{written}.{int(seconds % 1 * 1000):03d}" if form.endswith(".fff") else written
