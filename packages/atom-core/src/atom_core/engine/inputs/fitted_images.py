"""`as_image`: pictures of programs, brought to a size that the model takes. Pillow does the work."""

from __future__ import annotations

from typing import Any

import numpy as np

from atom_core.engine.inputs.placed_images import NAME
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image
from atom_models.vision.spec import VisionSpec

INSTALL = "pip install pillow"


def as_image(picture: Any, spec: VisionSpec) -> Image:
    """A picture, resized as its model asks and cut or filled up with black to `VisionSpec.fitted`; an `Image` as it is.

    Args:
        picture: an `Image`, an array uint8 ``[height, width, 3]`` of red, green and blue, or a picture of Pillow, whose
            transparent parts show white.

    Raises:
        InvalidRequestError: it is something else, or one side is more than 200 times the other.
        ImportError: there is no Pillow.
    """
    if isinstance(picture, Image):
        return picture
    picture = as_pillow(picture)
    try:
        size, fitted = (how(picture.height, picture.width) for how in (spec.resized, spec.fitted))
    except ValueError as error:
        raise InvalidRequestError(str(error), NAME) from None
    return Image.of(*fitted, brought_to(picture, size, fitted, spec))


def brought_to(picture: Any, size: tuple[int, int], fitted: tuple[int, int], spec: VisionSpec) -> bytes:
    """The pixels of a picture of Pillow that is resized to `size`, and cut or filled up with black to `fitted`."""
    pillow = _pillow()
    shown = as_rgb(picture).resize(size[::-1], pillow.Resampling[spec.resample.upper()])
    if size != fitted:
        top, left = spec.first_kept(*size)
        shown = shown.crop((left, top, left + fitted[1], top + fitted[0]))  # what is outside becomes black
    return shown.tobytes()


def as_pillow(picture: Any) -> Any:
    """An array uint8 ``[height, width, 3]`` as a picture of Pillow, which is left as it is.

    Raises:
        InvalidRequestError: it is something else.
        ImportError: there is no Pillow.
    """
    pillow = _pillow()
    if isinstance(picture, np.ndarray):
        picture = pillow.fromarray(_checked(picture))
    if not isinstance(picture, pillow.Image):
        raise InvalidRequestError(
            f"a picture is a {type(picture).__name__}; it must be an Image, an array uint8 [height, width, 3] or a "
            "picture of Pillow",
            NAME,
        )
    return picture


def as_rgb(picture: Any) -> Any:
    """A copy of a picture of Pillow in red, green and blue, over white; of 16 bits of grey the upper half.

    As Qwen's own processing does it, but for the grey, which Pillow would make white.
    """
    if picture.mode.startswith("I"):
        picture = picture.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture, shown = picture.convert("RGBA"), _pillow().new("RGB", picture.size, "white")
    shown.paste(picture, mask=picture.getchannel("A"))
    return shown


def _checked(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise InvalidRequestError(
            f"a picture is an array {array.dtype} {list(array.shape)}; it must be uint8 [height, width, 3]", NAME
        )
    return np.ascontiguousarray(array)


def _pillow() -> Any:
    try:
        from PIL import Image as pillow
    except ImportError:
        raise ImportError(f"Pillow is needed to resize pictures, and it is not installed: {INSTALL}") from None
    return pillow
