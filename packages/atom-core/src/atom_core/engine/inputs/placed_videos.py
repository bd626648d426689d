"""Videos are put into texts: each of their pictures gets a place, and the time before it if the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from atom_core.errors import InvalidRequestError
from atom_core.messages import Video
from atom_core.tokenization import Tokenizer
from atom_models.vision.spec import VisionSpec

NAME = "videos"


class VideoMarks(NamedTuple):
    """The texts of the tokens around a picture, and of that of a video."""

    start: str
    video: str
    end: str

    @classmethod
    def of(cls, spec: VisionSpec, tokenizer: Tokenizer | None) -> VideoMarks:
        """Those of a model.

        Raises:
            InvalidRequestError: it sees no videos, or has no texts for these tokens.
        """
        if spec.video is None:
            raise InvalidRequestError("this model sees no videos: send pictures", NAME)
        ids = (spec.start_token_id, spec.video.token_id, spec.end_token_id)
        texts = [None if tokenizer is None or each is None else tokenizer.id_to_token(each) for each in ids]
        if not all(texts):
            raise InvalidRequestError("the tokenizer has no tokens that stand for videos: send pictures", NAME)
        start, video, end = map(str, texts)
        return cls(start, video, end)


def with_places(text: str, videos: Sequence[Video], spec: VisionSpec, marks: VideoMarks) -> str:
    """A prompt with a token for each picture of its videos, in the place of one token for each video.

    As the processors of Qwen's models write it.

    Raises:
        InvalidRequestError: there is another number of videos in the text.
    """
    place = "".join(marks)
    count = text.count(marks.video)
    if count != len(videos) or text.count(place) != count:
        raise InvalidRequestError(
            f"the prompt has {count} video tokens, and there are {len(videos)} videos: each stands in the place of one "
            f"{place}",
            NAME,
        )
    parts = text.split(place)
    shown = [_shown(video, spec, marks) for video in videos]
    return "".join(part + video for part, video in zip(parts, [*shown, ""], strict=True))


def _shown(video: Video, spec: VisionSpec, marks: VideoMarks) -> str:
    if spec.video is None or not spec.video.has_timestamps:
        return marks.start + marks.video * len(video.images) + marks.end
    return "".join(f"<{seconds:.1f} seconds>{''.join(marks)}" for seconds in video.seconds)
