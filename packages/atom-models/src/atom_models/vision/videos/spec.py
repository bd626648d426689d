"""`VideoSpec`: how a video becomes pictures of several frames each.

A tower sees so many frames at once, and each of these by itself: what follows takes each as a picture of so many
frames. Which frames, in which size and what is said of their times is the rule of a family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from atom_models.vision.videos.kimi import KimiRules
from atom_models.vision.videos.qwen import Qwen2Rules, Qwen3Rules
from atom_models.vision.videos.rules import FrameSize, VideoFamily, VideoRules

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec
    from atom_models.vision.videos.marks import VideoMarks

Frame = TypeVar("Frame")

_RULES: Mapping[VideoFamily, VideoRules] = MappingProxyType(
    {"kimi_k25": KimiRules(), "qwen2": Qwen2Rules(), "qwen3": Qwen3Rules()}
)


@dataclass(frozen=True)
class VideoSpec:
    """Which frames of a video are seen, and how.

    Attributes:
        token_id: the token in whose place an embedding of a video stands; it may be that of pictures.
        family: whose rules hold.
        picture_frames: frames that become one picture, or the most of them.
        fps: frames that are taken of each second.
        min_frames, max_frames: the fewest and the most frames that are taken of a video that has as many.
        min_pixels, max_pixels: frames are made larger or smaller until they have so many, as the family counts them.
        positions_per_second: steps in time between pictures, where positions say when they were.
        max_pixels_together: frames of one picture have no more together; 0 where there is no such bound.
        timestamps: how a text says when a picture was, where the family has several ways.
    """

    token_id: int
    family: VideoFamily
    picture_frames: int
    fps: float
    min_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int
    positions_per_second: int
    max_pixels_together: int = 0
    timestamps: str = ""

    @property
    def has_timestamps(self) -> bool:
        """A text before each picture says when it was."""
        return self._rules.has_timestamps

    @property
    def least_frames(self) -> int:
        """A picture has so many, and `picture_frames` at most."""
        return 1 if self._rules.pools_frames else self.picture_frames

    def takes(self, num_frames: int) -> bool:
        """Whether a picture may have so many frames."""
        return self.least_frames <= num_frames <= self.picture_frames

    def depth(self, num_frames: int) -> int:
        """Patches behind each other in a picture of so many frames: as many are encoded for each token."""
        return num_frames if self._rules.pools_frames else 1

    def most_encoded(self, seen: VisionSpec) -> int:
        """See `VisionSpec.most_encoded`."""
        return self._rules.most_encoded(self, seen)

    def sampled(self, num_frames: int, fps: float) -> list[int]:
        """The frames that are taken of a video with so many, at so many a second, as the family's processor does.

        Raises:
            ValueError: it has fewer than one picture needs.
        """
        self._check_length(num_frames)
        return self._rules.sampled(self, num_frames, fps)

    def sizes(self, num_frames: int, height: int, width: int, seen: VisionSpec) -> list[FrameSize]:
        """To which size the frames of each picture are brought, given that of so many frames: multiples of the unit.

        As the family's processor computes it, but that no frame has more pixels than `seen` lets a picture have.

        Raises:
            ValueError: there are fewer frames than one picture needs; one side is more than 200 times the other, where
                the family refuses that.
        """
        self._check_length(num_frames)
        step = self.picture_frames
        pictures = [min(step, num_frames - first) for first in range(0, num_frames, step)]
        return self._rules.sizes(self, pictures, height, width, seen)

    def split(self, frames: Sequence[Frame]) -> list[Sequence[Frame]]:
        """The frames of each picture; the last frame is repeated where a picture must not have fewer."""
        step = self.picture_frames
        filled = [*frames, *[frames[-1]] * (-len(frames) % self.least_frames)]
        return [filled[first : first + step] for first in range(0, len(filled), step)]

    def seconds(self, frames: Sequence[int], fps: float) -> list[float]:
        """When each picture was, given the places of its frames in a video of so many frames a second."""
        return [self._rules.second(picture, fps) for picture in self.split(frames)]

    def lags(self, num_frames: int, taken_fps: float) -> list[int | None]:
        """How far each picture stands behind the first one in time; None of the first, and where texts say it.

        Args:
            num_frames: frames that were taken.
            taken_fps: how many of a second were.
        """
        return self._rules.steps_in_time(self, -(-num_frames // self.picture_frames), taken_fps)

    def marks(self, start: str | None, token: str | None, end: str | None) -> VideoMarks | None:
        """The texts that stand for a video, given those of the tokens of a picture; None where one is missing."""
        return self._rules.marks(start, token, end)

    def written(self, seconds: Sequence[float], marks: VideoMarks) -> str:
        """What a prompt has for a video whose pictures were at these times."""
        return self._rules.written(self, seconds, marks)

    @property
    def _rules(self) -> VideoRules:
        return _RULES[self.family]

    def _check_length(self, num_frames: int) -> None:
        if num_frames < self.least_frames:
            raise ValueError(f"a video of {num_frames} frames; it must have {self.least_frames} at least")
