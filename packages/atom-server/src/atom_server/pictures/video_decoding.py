"""From the file of a video, or pictures of its frames, to the frames that a model sees, by PyAV and Pillow.

Only the process with limits runs this. A file's first bytes choose its format, so that no list of other files or
addresses is taken for a video; frames of a few codecs are decoded, one after the other, and those alone are kept that
are seen.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from PIL import Image

from atom_core.engine.inputs.fitted_videos import video_of
from atom_core.errors import InvalidRequestError
from atom_core.models import VideoSpec
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoding import file_of, opened, shown
from atom_server.pictures.messages import Answer, Question

av: Any
try:
    import av  # pyright: ignore[reportMissingImports]
except ImportError:  # frames alone are read
    av = None

# What each begins with, from a place on.
_FORMATS = (("mp4", 4, b"ftyp"), ("matroska", 0, b"\x1a\x45\xdf\xa3"), ("avi", 8, b"AVI "))
_CODECS = frozenset(("h264", "hevc", "vp8", "libvpx", "vp9", "libvpx-vp9", "av1", "libdav1d", "mpeg4", "mjpeg"))
# Nothing is opened but the file itself.
_ALONE = {"protocol_whitelist": "", "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"}


def decode_video(question: Question) -> Answer:
    """The frames that are seen of a video, in the size that the model takes.

    Raises:
        PictureError: it cannot be taken.
    """
    video = question.spec.video
    if video is None:
        raise PictureError("the model sees no videos")
    try:
        return _of_pictures(question, video) if question.is_of_frames else _of_file(question, video)
    except (PictureError, MemoryError):
        raise
    except InvalidRequestError as error:
        raise PictureError(error.message) from None
    except Exception:  # as for pictures
        raise PictureError("it is cut short or broken") from None


def _of_pictures(question: Question, video: VideoSpec) -> Answer:
    """All of them are seen, as if they had been taken at the model's own rate."""
    parts = question.file.split(b",", video.max_frames)
    if len(parts) > video.max_frames:
        raise PictureError(f"it has more than {video.max_frames} frames, which are seen at most: leave some out")

    def frames() -> Iterator[Image.Image]:
        for index, part in enumerate(parts):
            with opened(file_of(msgspec.structs.replace(question, file=part))) as picture:
                if index == 0:
                    _check_room(question, video, len(parts), picture.height, picture.width)
                yield shown(picture, question.num_pixels)

    return Answer(video=video_of(frames(), range(len(parts)), question.spec, fps=video.fps, taken_fps=video.fps))


def _of_file(question: Question, video: VideoSpec) -> Answer:
    content = file_of(question).getvalue()
    num_frames, fps = _counted(content, question.num_pixels)
    try:
        places = video.sampled(num_frames, fps)
    except ValueError as error:
        raise PictureError(str(error)) from None
    with _opened_file(content) as container:
        stream = container.streams.video[0]
        _check_room(question, video, len(places), stream.codec_context.height, stream.codec_context.width)
        taken_fps = len(places) / num_frames * fps
        frames = _taken(container.decode(stream), places)
        return Answer(video=video_of(frames, places, question.spec, fps=fps, taken_fps=taken_fps))


def _counted(content: bytes, num_pixels: int) -> tuple[int, float]:
    """How many frames there are, and how many of a second; whatever the head says, they are counted."""
    with _opened_file(content) as container:
        if not container.streams.video:
            raise PictureError("it has no pictures")
        stream = container.streams.video[0]
        codec = stream.codec_context
        if codec.name not in _CODECS:
            raise PictureError(f"its codec is {codec.name[:32]!r}; allowed are {', '.join(sorted(_CODECS))}")
        if codec.width * codec.height > num_pixels:
            raise PictureError(
                f"it has {codec.width} x {codec.height} pixels; at most {num_pixels} are decoded: make it smaller"
            )
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        count = sum(packet.size > 0 for packet in container.demux(stream))
    if not 0 < fps <= 1000:
        raise PictureError("it does not say how many frames it has in a second")
    return count, fps


def _taken(frames: Iterator[Any], places: Sequence[int]) -> Iterator[Image.Image]:
    """Those at these places, which are in order, as pictures of Pillow."""
    left = list(reversed(places))
    for place, frame in enumerate(frames):
        while left and left[-1] == place:
            left.pop()
            yield frame.to_image()
        if not left:
            return
    raise PictureError(f"it is cut short: {len(left)} of the {len(places)} frames that are to be seen are missing")


def _check_room(question: Question, video: VideoSpec, count: int, height: int, width: int) -> None:
    """Before all of it is decoded."""
    spec = question.spec
    try:
        sizes = video.sizes(count, height, width, spec)
    except ValueError as error:
        raise PictureError(str(error)) from None
    num_tokens = sum(spec.num_tokens(*size.fitted) for size in sizes)
    if num_tokens > question.num_tokens:
        raise PictureError(
            f"it takes {num_tokens} tokens, and the context has room for {question.num_tokens}: send a shorter or a "
            "smaller one"
        )


def _opened_file(content: bytes) -> Any:
    if av is None:
        raise PictureError("videos need PyAV, which this server has not")
    found = [name for name, place, mark in _FORMATS if content[place : place + len(mark)] == mark]
    if not found:
        raise PictureError("its data is no video of MP4, QuickTime, WebM, Matroska or AVI")
    return av.open(io.BytesIO(content), format=found[0], options=dict(_ALONE))
