"""Videos are put into texts: each of their pictures gets a place, and the time before it if the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, Video
from atom_core.tokenization import Tokenizer
from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import VideoMarks

NAME = "videos"


@dataclass(frozen=True)
class PlacedVideos:
    """A text with a token for each picture of its videos.

    Attributes:
        text: the prompt.
        videos: in its order.
        num_before: how many tokens of pictures stand before each video and behind the one before it, where pictures
            have the same token; otherwise 0, as the tokens tell them apart.
    """

    text: str
    videos: Sequence[Video] = ()
    num_before: Sequence[int] = ()

    def among(self, images: Sequence[Image]) -> list[Image]:
        """The pictures of the prompt, in order, with those of its videos in their places."""
        found: list[Image] = []
        taken = 0
        for video, count in zip(self.videos, self.num_before, strict=True):
            found += [*images[taken : taken + count], *video.images]
            taken += count
        return [*found, *images[taken:]]


def marks_of(spec: VisionSpec, tokenizer: Tokenizer | None) -> VideoMarks:
    """The texts that stand for videos.

    Raises:
        InvalidRequestError: the model sees no videos, or has no texts for their tokens.
    """
    if spec.video is None:
        raise InvalidRequestError("this model sees no videos: send pictures", NAME)
    ids = (spec.start_token_id, spec.video.token_id, spec.end_token_id)
    texts = [None if tokenizer is None or each is None else tokenizer.id_to_token(each) for each in ids]
    marks = spec.video.marks(*texts)
    if marks is None:
        raise InvalidRequestError("the tokenizer has no tokens that stand for videos: send pictures", NAME)
    return marks


def with_places(text: str, videos: Sequence[Video], spec: VisionSpec, marks: VideoMarks) -> PlacedVideos:
    """A prompt with a token for each picture of its videos, in the place of what a template writes for each video.

    Raises:
        InvalidRequestError: there is another number of videos in the text, or the model sees none.
    """
    if spec.video is None:
        raise InvalidRequestError("this model sees no videos: send pictures", NAME)
    count = text.count(marks.counted)
    if count != len(videos) or text.count(marks.place) != count:
        raise InvalidRequestError(
            f"the prompt has {count} video tokens, and there are {len(videos)} videos: each stands in the place of one "
            f"{marks.place}",
            NAME,
        )
    parts = text.split(marks.place)
    shown = [spec.video.written(video.seconds, marks) for video in videos]
    placed = "".join(part + video for part, video in zip(parts, [*shown, ""], strict=True))
    return PlacedVideos(placed, videos, [part.count(marks.token) for part in parts[:-1]])
