"""From the file of a picture to red, green and blue of the size that a model takes, by Pillow.

Only the process with limits runs this.
"""

from __future__ import annotations

import binascii
import io
import warnings
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from atom_core.engine.inputs.fitted_images import as_image
from atom_core.errors import InvalidRequestError
from atom_core.messages import Image as FittedImage
from atom_core.models import VisionSpec
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.messages import Answer, Question

# In the order in which they are tried. Cameras put several pictures into one file of JPEG ("MPO"): the first counts.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MAY_MOVE = frozenset(("PNG", "WEBP", "GIF"))


_ANY = VisionSpec(0, 0, 0, 1, 1, 1, 4, mean=(0, 0, 0), std=(1, 1, 1))


def prepare() -> None:
    """Load what is needed to decode, and leave limits to us."""
    Image.MAX_IMAGE_PIXELS = None
    Image.preinit()
    warnings.simplefilter("ignore")
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    decode(Question(file.getvalue(), False, 2**10, 4, _ANY))


def decode(question: Question, fit: Callable[[Any, VisionSpec], FittedImage] = as_image) -> Answer:
    """The picture, turned as its file says, over white, in the size that the model takes.

    Args:
        fit: brings it to that size.

    Raises:
        PictureError: it cannot be taken.
    """
    try:
        with opened(file_of(question)) as picture:
            return Answer(fit(shown(picture, question.num_pixels), question.spec))
    except (PictureError, MemoryError):
        raise
    except InvalidRequestError as error:
        raise PictureError(error.message) from None
    except Exception:  # Pillow raises of many kinds; its words may tell of this process, and nobody gets them
        raise PictureError("it is cut short or broken") from None


def shown(picture: Image.Image, num_pixels: int) -> Image.Image:
    """The picture decoded and turned, if it may be.

    Raises:
        PictureError: by its head alone: nothing has been decoded.
    """
    _check(picture, num_pixels)
    picture.load()
    ImageOps.exif_transpose(picture, in_place=True)
    return picture


def file_of(question: Question) -> io.BytesIO:
    """The file, of bytes that are no longer text.

    Raises:
        PictureError: it is no base64, or has too many bytes.
    """
    try:
        data = binascii.a2b_base64(question.file) if question.is_base64 else question.file
    except binascii.Error:
        raise PictureError("its data is no base64") from None
    if len(data) > question.num_bytes:
        raise PictureError(f"its file has {len(data)} bytes; at most {question.num_bytes} are read: make it smaller")
    return io.BytesIO(data)


def opened(file: io.BytesIO) -> Image.Image:
    """A picture of which the head was read.

    Raises:
        PictureError: it is of no format that is read.
    """
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        raise PictureError("its data is no picture of PNG, JPEG, WEBP or GIF") from None


def _check(picture: Image.Image, num_pixels: int) -> None:
    width, height = picture.size
    if width * height > num_pixels:
        raise PictureError(f"it has {width} x {height} pixels; at most {num_pixels} are decoded: make it smaller")
    if picture.format in _MAY_MOVE and getattr(picture, "is_animated", False):
        raise PictureError("it is animated; send one picture of it")
