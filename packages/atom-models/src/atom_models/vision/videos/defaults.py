"""`VideoDefaults`: what each family does with videos where no file says so."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.vision.videos.rules import VideoFamily


@dataclass(frozen=True)
class VideoDefaults:
    """What a family's processor does where no file says so; the fields are those of `VideoSpec`."""

    family: VideoFamily
    min_pixels: int
    max_pixels: int
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    positions_per_second: int = 0


QWEN3 = VideoDefaults("qwen3", 131_072, 786_432)
QWEN2 = VideoDefaults("qwen2", 100_352, 602_112, positions_per_second=4)
# No prompt has more frames.
KIMI = VideoDefaults("kimi_k25", 784, 802_816, min_frames=1, max_frames=4096)
