"""`GivenPrompt`: a prompt as programs write it: text or token ids, and maybe pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom_core.engine.inputs.fitted_images import as_image
from atom_core.engine.inputs.fitted_videos import NAME as VIDEOS
from atom_core.engine.inputs.fitted_videos import as_video
from atom_core.engine.inputs.placed_images import NAME, with_marks
from atom_core.engine.inputs.placed_videos import PlacedVideos, marks_of, with_places
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image
from atom_core.tokenization import Tokenizer
from atom_models.vision.spec import VisionSpec

GivenText = str | Sequence[int]
Given = GivenText | Mapping[str, Any]
"""Text, token ids, or a mapping of ``prompt`` (text) or ``prompt_token_ids``, ``images`` and ``videos``: see `as_image`
and `as_video`. Where a picture is a prompt of its own, there are ``images`` alone."""

_TEXTS = ("prompt", "prompt_token_ids")


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt with one image token for each of its pictures, which are fitted."""

    text: GivenText
    images: Sequence[Image] = ()

    @classmethod
    def of(cls, given: Given, spec: VisionSpec | None, tokenizer: Tokenizer | None = None) -> GivenPrompt:
        """What was given.

        Args:
            spec: which pictures the model sees.
            tokenizer: knows the texts around videos.

        Raises:
            InvalidRequestError: a mapping has other keys, or a picture is none; the model sees none.
        """
        if not isinstance(given, Mapping):
            return cls(given)
        if spec is not None and spec.stands_alone and given.keys() == {NAME}:
            given = {"prompt_token_ids": [spec.image_token_id], **given}
        texts = [name for name in _TEXTS if name in given]
        if len(texts) != 1 or not given.keys() <= {*_TEXTS, NAME, VIDEOS}:
            raise InvalidRequestError(
                f"a prompt has the keys {', '.join(map(repr, given))}; it must have 'prompt' or 'prompt_token_ids', "
                f"and may have '{NAME}' and '{VIDEOS}'",
                "prompt",
            )
        text, pictures, moving = given[texts[0]], given.get(NAME) or (), given.get(VIDEOS) or ()
        if spec is None:
            if pictures or moving:
                raise InvalidRequestError(
                    f"a prompt has {len(pictures) + len(moving)} pictures, and this model reads text alone: leave them "
                    "out",
                    NAME,
                )
            return cls(text)
        images, videos = [as_image(picture, spec) for picture in pictures], [as_video(video, spec) for video in moving]
        if not isinstance(text, str):
            if images and videos and spec.has_one_token:
                raise InvalidRequestError(
                    "this model has one token for pictures and videos, so that token ids do not say which is where: "
                    f"give all of them as '{NAME}', in order, those of a video as as_video(frames, spec).images",
                    NAME,
                )
            return cls(text, [*images, *(image for video in videos for image in video.images)])
        placed = with_places(text, videos, spec, marks_of(spec, tokenizer)) if videos else PlacedVideos(text)
        text = with_marks(placed.text, spec, tokenizer) if images else placed.text
        return cls(text, placed.among(images))
