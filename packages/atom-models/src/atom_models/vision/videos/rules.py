"""`VideoRules`: what a family does with the frames of a video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.videos.marks import VideoMarks
    from atom_models.vision.videos.spec import VideoSpec

VideoFamily = Literal["kimi_k25", "qwen2", "qwen3"]
"""Names of rules, see `atom_models.vision.videos.spec`."""


class FrameSize(NamedTuple):
    """Heights and widths in pixels: that to which a frame is resized, and that to which it is filled up with black."""

    resized: tuple[int, int]
    fitted: tuple[int, int]


class VideoRules(Protocol):
    """A family's way to see videos, by the numbers of a `VideoSpec`.

    Attributes:
        has_timestamps: a text before each picture says when it was.
        pools_frames: a patch has one frame, and the tower takes the mean over the frames of a picture, so that it may
            have fewer; otherwise a patch has all of them, and the last frame is repeated where some are missing.
    """

    has_timestamps: bool
    pools_frames: bool

    def sampled(self, video: VideoSpec, num_frames: int, fps: float) -> list[int]:
        """See `VideoSpec.sampled`."""
        ...

    def sizes(
        self, video: VideoSpec, pictures: Sequence[int], height: int, width: int, seen: VisionSpec
    ) -> list[FrameSize]:
        """See `VideoSpec.sizes`; `pictures` are the frames of each picture."""
        ...

    def most_encoded(self, video: VideoSpec, seen: VisionSpec) -> int:
        """See `VisionSpec.most_encoded`, of pictures of a video."""
        ...

    def second(self, frames: Sequence[int], fps: float) -> float:
        """When a picture was, given the places of its frames in a video of so many a second."""
        ...

    def steps_in_time(self, video: VideoSpec, count: int, taken_fps: float) -> list[int | None]:
        """See `VideoSpec.lags`, of so many pictures."""
        ...

    def marks(self, start: str | None, token: str | None, end: str | None) -> VideoMarks | None:
        """The texts that stand for a video, given those of its tokens; None where one is missing."""
        ...

    def written(self, video: VideoSpec, seconds: Sequence[float], marks: VideoMarks) -> str:
        """What a prompt has for a video whose pictures were at these times."""
        ...
