"""Pictures are put into prompts: checked, and given a token for each of their embeddings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, PlacedImage
from atom_core.tokenization import Tokenizer
from atom_models.vision.positions import widened
from atom_models.vision.spec import VisionSpec

MAX_IMAGES = 256
# Pictures of videos, which have some frames each.
MAX_OF_VIDEOS = 1024
# In steps of time; what a video of days has.
MAX_LAG = 1 << 20
NAME = "images"


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt with an image token for each embedding of its pictures, and where these stand."""

    token_ids: list[int]
    images: tuple[PlacedImage, ...] = ()


def place_images(token_ids: Sequence[int], images: Sequence[Image], spec: VisionSpec | None) -> PlacedPrompt:
    """Widen the image tokens of a prompt, which has one for each of its pictures.

    Args:
        images: pictures, and pictures of videos (`Video.images`), each in the order of their own tokens; in that of the
            prompt, where both have one token.
        spec: what the model sees; None where it takes text alone, in which no token means a picture.

    Raises:
        InvalidRequestError: there is another number of image tokens than of pictures, or a picture that the model does
            not take as it is.
    """
    if spec is None:
        if images:
            raise InvalidRequestError(
                f"the prompt has {len(images)} pictures, and this model reads text alone: leave them out, or ask a "
                "model that sees",
                NAME,
            )
        return PlacedPrompt(list(token_ids))
    if spec.stands_alone:
        return _alone(token_ids, images, spec)
    if not images and not any(token in token_ids for token in spec.placeholders):
        return PlacedPrompt(list(token_ids))
    for number, image in enumerate(images):
        _check_image(image, number, spec)
    images = _in_order(token_ids, images, spec)
    try:
        tokens, firsts = widened(token_ids, [(image.height, image.width) for image in images], spec)
    except ValueError as error:
        raise InvalidRequestError(str(error), NAME) from None
    if images and token_ids[-1] in spec.placeholders:
        ending = spec.end_token_id if spec.row_token_id is None else None
        such_as = "" if ending is None else f", such as the one that ends a picture ({ending})"
        raise InvalidRequestError(f"the prompt ends with a picture; at least one token must follow it{such_as}", NAME)
    placed = tuple(
        PlacedImage(image, first, spec.num_tokens(image.height, image.width), spec.depth(image.num_frames))
        for image, first in zip(images, firsts, strict=True)
    )
    _check_lags(placed)
    return PlacedPrompt(tokens, placed)


def _alone(token_ids: Sequence[int], images: Sequence[Image], spec: VisionSpec) -> PlacedPrompt:
    """A text, or a picture, where each is a prompt of its own."""
    if not images:
        return PlacedPrompt(list(token_ids))
    if len(images) > 1 or list(token_ids) != [spec.image_token_id]:
        raise InvalidRequestError(
            f"the prompt has {len(images)} pictures and {len(token_ids)} tokens; this model makes a vector of a text "
            f"or of a picture: a picture's prompt is the token {spec.image_token_id} alone",
            NAME,
        )
    _check_image(images[0], 0, spec)
    return PlacedPrompt([spec.image_token_id], (PlacedImage(images[0], 0, 1),))


def with_marks(text: str, spec: VisionSpec, tokenizer: Tokenizer | None) -> str:
    """A prompt with all that stands for a picture, where its template writes no more than the start of each.

    As the processor of Gemma 3 writes it.

    Raises:
        InvalidRequestError: the tokenizer has no texts for these tokens.
    """
    if not spec.written_around:
        return text
    ids = (spec.start_token_id, spec.image_token_id, spec.end_token_id)
    marks = [None if tokenizer is None or each is None else tokenizer.id_to_token(each) for each in ids]
    if not all(marks):
        raise InvalidRequestError("the tokenizer has no tokens that stand for pictures: give token ids", NAME)
    start, image, end = map(str, marks)
    # Whoever writes all of it is left alone.
    alone = re.compile(f"{re.escape(start)}(?!{re.escape(image)})")
    return alone.sub(lambda _: f"{spec.written_around}{start}{image}{end}{spec.written_around}", text)


def _in_order(token_ids: Sequence[int], images: Sequence[Image], spec: VisionSpec) -> list[Image]:
    """The pictures in the order in which their tokens stand; those too many are last."""
    still = [image for image in images if image.num_frames == 1]
    moving = [image for image in images if image.num_frames > 1]
    if len(still) > MAX_IMAGES:
        raise InvalidRequestError(f"the prompt has {len(still)} pictures; send at most {MAX_IMAGES}", NAME)
    if spec.video is None:
        return still
    count = token_ids.count(spec.video.token_id)
    if count != len(moving) and not spec.has_one_token:
        raise InvalidRequestError(
            f"the prompt has {count} video tokens ({spec.video.token_id}), and its videos have {len(moving)} pictures "
            f"of {spec.video.picture_frames} frames: each stands in the place of one",
            NAME,
        )
    if len(moving) > MAX_OF_VIDEOS:
        most = MAX_OF_VIDEOS * spec.video.picture_frames
        raise InvalidRequestError(f"the prompt's videos have more than {most} frames, which are seen at most", NAME)
    if spec.has_one_token:
        return list(images)
    left, of_videos = iter(still), iter(moving)
    places = (token for token in token_ids if token in spec.placeholders)
    found = [next(of_videos if token == spec.video.token_id else left, None) for token in places]
    return [image for image in found if image is not None] + list(left)


def _check_lags(placed: Sequence[PlacedImage]) -> None:
    """Raise InvalidRequestError where a picture goes on a video that does not end where it begins."""
    for index, one in enumerate(placed):
        if one.image.lag is None:
            continue
        before = placed[index - 1] if index else None
        if before is None or before.end != one.first_token or before.image.num_frames == 1:
            raise InvalidRequestError(
                f"a picture at token {one.first_token} goes on a video, and no picture of it ends there: leave nothing "
                "between the tokens of a video",
                NAME,
            )


def _check_image(image: Image, number: int, spec: VisionSpec) -> None:
    """Raise InvalidRequestError unless the model takes a picture as it is."""
    if not isinstance(image, Image):
        raise InvalidRequestError(f"{NAME}[{number}] is a {type(image).__name__}; it must be an Image", NAME)
    height, width, num_bytes = image.height, image.width, len(image.pixels)
    what = f"{NAME}[{number}] has {width} x {height} pixels"
    if height < 1 or width < 1 or height % spec.unit or width % spec.unit:
        raise InvalidRequestError(f"{what}; both sides must be multiples of {spec.unit}: {_HOW}", NAME)
    if image.num_frames != 1 or image.lag is not None:
        _check_moving(image, what, spec)
    elif not spec.min_pixels <= height * width <= spec.most_pixels:
        raise InvalidRequestError(f"{what}; it must be {spec.min_pixels} to {spec.most_pixels} of them: {_HOW}", NAME)
    elif spec.resizing == "fixed" and (height, width) != spec.fitted(height, width):
        raise InvalidRequestError(f"{what}; it must be {spec.max_side} x {spec.max_side}: {_HOW}", NAME)
    num_tokens = spec.num_tokens(height, width)
    if num_tokens > spec.most_tokens:
        raise InvalidRequestError(f"{what}, {num_tokens} tokens; it can be {spec.most_tokens} of them: {_HOW}", NAME)
    if num_tokens * spec.depth(image.num_frames) > spec.most_encoded:
        raise InvalidRequestError(
            f"{what} and {num_tokens} tokens in each of {image.num_frames} frames; all of these can be "
            f"{spec.most_encoded}: {_HOW}",
            NAME,
        )
    if num_bytes != 3 * height * width * image.num_frames:
        raise InvalidRequestError(f"{what} and {num_bytes} bytes; there are 3 bytes for each pixel", NAME)


def _check_moving(image: Image, what: str, spec: VisionSpec) -> None:
    video = spec.video
    if video is None:
        raise InvalidRequestError(f"{what} of a video, and this model sees none: send pictures", NAME)
    if not video.takes(image.num_frames):
        least, most = video.least_frames, video.picture_frames
        frames = f"{most}" if least == most else f"{least} to {most}"
        raise InvalidRequestError(f"{what} and {image.num_frames} frames; it must have {frames}", NAME)
    if image.height * image.width > spec.most_pixels:
        raise InvalidRequestError(f"{what}; it can have {spec.most_pixels} of them: {_HOW}", NAME)
    if image.lag is not None and (video.has_timestamps or not 0 <= image.lag <= MAX_LAG):
        most = "None, as texts say when it was" if video.has_timestamps else f"0 to {MAX_LAG}"
        raise InvalidRequestError(f"{what} and a lag of {image.lag}; it must be {most}", NAME)


_HOW = "bring it to the size that VisionSpec.fitted says"
