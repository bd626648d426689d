"""`as_video`: frames of programs and files, brought to the size that a model takes. Pillow does the work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from atom_core.engine.inputs.fitted_images import as_pillow, brought_to
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, Video
from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import FrameSize

NAME = "videos"


def as_video(frames: Any, spec: VisionSpec, fps: float | None = None) -> Video:
    """A video of frames that are all seen; a `Video` is left as it is.

    Args:
        frames: a `Video`, an array uint8 ``[frames, height, width, 3]``, or a list of pictures, see `as_image`.
        fps: how many of them there are of a second; None is as many as the model is used to.

    Raises:
        InvalidRequestError: it is something else, the model sees no videos, or there are too few or too many frames.
        ImportError: there is no Pillow.
    """
    if isinstance(frames, Video):
        return frames
    if spec.video is None:
        raise InvalidRequestError("this model sees no videos: send pictures", NAME)
    if isinstance(frames, np.ndarray) and frames.ndim != 4:
        raise InvalidRequestError(
            f"a video is an array {list(frames.shape)}; it must be uint8 [frames, height, width, 3]", NAME
        )
    if not isinstance(frames, np.ndarray | list | tuple):
        raise InvalidRequestError(
            f"a video is a {type(frames).__name__}; it must be a Video, an array uint8 [frames, height, width, 3] or a "
            "list of pictures",
            NAME,
        )
    rate = fps or spec.video.fps
    return video_of(map(as_pillow, frames), range(len(frames)), spec, fps=rate, taken_fps=rate)


def video_of(frames: Iterable[Any], places: Sequence[int], spec: VisionSpec, *, fps: float, taken_fps: float) -> Video:
    """A video of frames that were taken of one.

    Args:
        frames: pictures of Pillow, which are asked for one after the other.
        places: where each was in the video.
        fps: frames of a second of the video.
        taken_fps: how many of them were taken.

    Raises:
        InvalidRequestError: there are too few or too many, they have several sizes, or one side is more than 200 times
            the other.
    """
    video, count = spec.video, len(places)
    if video is None:
        raise InvalidRequestError("this model sees no videos: send pictures", NAME)
    if count > video.max_frames:
        message = f"a video has {count} frames; at most {video.max_frames} are seen: leave some out"
        raise InvalidRequestError(message, NAME)
    shown: list[bytes] = []
    sizes: list[FrameSize] = []
    given = (0, 0)
    for number, frame in enumerate(frames):
        if number == 0:
            given = frame.size
            sizes = _sizes(count, frame.height, frame.width, spec)
        if frame.size != given:
            raise InvalidRequestError(
                f"frame {number} of a video has {frame.width} x {frame.height} pixels, and the first one {given[0]} x "
                f"{given[1]}: all must have one size",
                NAME,
            )
        shown.append(brought_to(frame, *sizes[number // video.picture_frames], spec))
    if not shown:
        _sizes(count, 1, 1, spec)
    images = (
        Image.of_video(*size.fitted, frames, lag)
        for size, frames, lag in zip(sizes, video.split(shown), video.lags(count, taken_fps), strict=True)
    )
    return Video(tuple(images), tuple(video.seconds(list(places), fps)))


def _sizes(count: int, height: int, width: int, spec: VisionSpec) -> list[FrameSize]:
    try:
        return spec.video.sizes(count, height, width, spec)  # type: ignore[union-attr]
    except ValueError as error:
        raise InvalidRequestError(str(error), NAME) from None
