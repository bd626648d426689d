"""Pictures are put into prompts: checked, and given a token for each of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.errors import InvalidRequestError
from atom_core.messages import Image, PlacedImage
from atom_models.vision.positions import widened
from atom_models.vision.spec import VisionSpec

MAX_IMAGES = 256
NAME = "images"


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt with an image token for each embedding of its pictures, and where these stand."""

    token_ids: list[int]
    images: tuple[PlacedImage, ...] = ()


def place_images(token_ids: Sequence[int], images: Sequence[Image], spec: VisionSpec | None) -> PlacedPrompt:
    """Widen the image tokens of a prompt, which has one for each of its pictures.

    Args:
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
    if not images and spec.image_token_id not in token_ids:
        return PlacedPrompt(list(token_ids))
    if len(images) > MAX_IMAGES:
        raise InvalidRequestError(f"the prompt has {len(images)} pictures; send at most {MAX_IMAGES}", NAME)
    for number, image in enumerate(images):
        _check_image(image, number, spec)
    try:
        tokens, firsts = widened(token_ids, [(image.height, image.width) for image in images], spec)
    except ValueError as error:
        raise InvalidRequestError(str(error), NAME) from None
    if images and token_ids[-1] == spec.image_token_id:
        ending = spec.end_token_id if spec.row_token_id is None else None
        such_as = "" if ending is None else f", such as the one that ends a picture ({ending})"
        raise InvalidRequestError(f"the prompt ends with a picture; at least one token must follow it{such_as}", NAME)
    placed = (
        PlacedImage(image, first, spec.num_tokens(image.height, image.width))
        for image, first in zip(images, firsts, strict=True)
    )
    return PlacedPrompt(tokens, tuple(placed))


def _check_image(image: Image, number: int, spec: VisionSpec) -> None:
    """Raise InvalidRequestError unless the model takes a picture as it is."""
    if not isinstance(image, Image):
        raise InvalidRequestError(f"{NAME}[{number}] is a {type(image).__name__}; it must be an Image", NAME)
    height, width, num_bytes = image.height, image.width, len(image.pixels)
    what = f"{NAME}[{number}] has {width} x {height} pixels"
    if height < 1 or width < 1 or height % spec.unit or width % spec.unit:
        raise InvalidRequestError(f"{what}; both sides must be multiples of {spec.unit}: {_HOW}", NAME)
    if not spec.min_pixels <= height * width <= spec.most_pixels:
        raise InvalidRequestError(f"{what}; it must be {spec.min_pixels} to {spec.most_pixels} of them: {_HOW}", NAME)
    num_tokens = spec.num_tokens(height, width)
    if num_tokens > spec.most_tokens:
        raise InvalidRequestError(f"{what}, {num_tokens} tokens; it can be {spec.most_tokens} of them: {_HOW}", NAME)
    if num_bytes != 3 * height * width:
        raise InvalidRequestError(f"{what} and {num_bytes} bytes; there are 3 bytes for each pixel", NAME)


_HOW = "bring it to the size that VisionSpec.fitted says"
