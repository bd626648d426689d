"""What pictures of strangers may take."""

from __future__ import annotations

import os
from typing import NamedTuple

from atom_core.limited_process import Limits

# Decoders at once, each of which may hold all pixels of a picture several times.
NUM_PROCESSES = min(4, os.cpu_count() or 1)
# Files that are fetched at once, or wait for a decoder.
NUM_FETCHED = 8
# 64 megapixels of the slowest format take some seconds.
_CPU_SECONDS = 15.0
_CLOCK_SECONDS = 60.0
# All frames up to the last one that is seen are decoded.
_VIDEO_CPU_SECONDS = 60.0
_VIDEO_CLOCK_SECONDS = 180.0
_KEPT_BYTES = 128 << 20
# The file, libraries, and the picture as it is stored, turned, over white, in red, green and blue, and smaller.
_BYTES_BESIDE_PIXELS = 256 << 20
_BYTES_PER_PIXEL = 20


class PictureLimits(NamedTuple):
    """What one request, and one picture of it, may have.

    Attributes:
        count: the most pictures of a prompt.
        num_bytes: the most of a file.
        num_pixels: the most of a picture before it is made smaller.
        num_videos: the most videos of a prompt.
        num_video_bytes: the most of a video's file.
    """

    count: int
    num_bytes: int
    num_pixels: int
    num_videos: int = 4
    num_video_bytes: int = 64 << 20

    def of_process(self) -> Limits:
        """What decoding one picture may take."""
        return self._limits(self.num_bytes, _CPU_SECONDS, _CLOCK_SECONDS)

    def of_video_process(self) -> Limits:
        """What decoding one video may take."""
        return self._limits(2 * self.num_video_bytes, _VIDEO_CPU_SECONDS, _VIDEO_CLOCK_SECONDS)

    def _limits(self, num_bytes: int, cpu_seconds: float, clock_seconds: float) -> Limits:
        memory = _BYTES_BESIDE_PIXELS + 2 * num_bytes + _BYTES_PER_PIXEL * self.num_pixels
        return Limits(cpu_seconds, memory, _KEPT_BYTES, clock_seconds)
