"""`CheckpointProcessor`: the image processor that a checkpoint names, run by transformers, gives a picture its size.

Only the process with limits runs this. Pictures come here opened, checked and turned; the processor is asked for pixels
that are neither scaled nor normed, which the tower does, so that they travel as those of our own processing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from atom_core.engine.inputs.fitted_images import as_rgb
from atom_core.messages import Image
from atom_core.models import VisionSpec
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.processor_families import FAMILIES

_AS_BYTES = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}


class CheckpointProcessor:
    """The processor of a checkpoint.

    Args:
        folder: the checkpoint's, of which no code is run.

    Raises:
        PictureError: it is unknown to transformers, comes as code, or is none whose pixels can be read back.
    """

    def __init__(self, folder: Path) -> None:
        self._processor = _load(folder)
        name = type(self._processor).__name__
        if name not in FAMILIES:
            allowed = ", ".join(FAMILIES)
            raise PictureError(f"what a {name} gives cannot be read back as pixels; allowed are {allowed}")
        self._family = FAMILIES[name]

    def image(self, picture: Any, spec: VisionSpec) -> Image:
        """The pixels that the processor gives a picture of Pillow.

        Raises:
            PictureError: one side is more than 200 times the other, the processor fails with it, or what it gives is
                none that the model takes.
        """
        try:
            spec.fitted(picture.height, picture.width)  # a thin picture would grow without end
        except ValueError as error:
            raise PictureError(str(error)) from None
        shown = as_rgb(picture)
        try:
            return _as_bytes(self._pixels(shown, spec), spec)
        except (PictureError, MemoryError):
            raise
        except Exception as error:  # its words may tell of this process
            raise PictureError(f"the checkpoint's processor fails with it ({type(error).__name__})") from None

    def _pixels(self, shown: Any, spec: VisionSpec) -> np.ndarray:
        self._check_norm(spec)
        told = self._family.told(self._processor, spec)
        found = self._processor(images=[shown], **_AS_BYTES, **told)
        return self._family.pixels(found, self._processor)

    def _check_norm(self, spec: VisionSpec) -> None:
        """The tower takes off and divides by what the processor would have."""
        for name, own in (("image_mean", spec.mean), ("image_std", spec.std)):
            given = getattr(self._processor, name)
            if not all(map(math.isclose, given, own)):
                raise PictureError(
                    f"{name} of a {type(self._processor).__name__} is {given}, and the tower takes {own}"
                )


def _as_bytes(pixels: np.ndarray, spec: VisionSpec) -> Image:
    """``[height, width, 3]``; where all have one size, patches that would be cut short are left out, as by a tower."""
    height, width = pixels.shape[:2] if spec.has_sizes else spec.fitted(*pixels.shape[:2])
    kept = pixels[:height, :width]
    whole = kept.astype(np.uint8)
    if kept.shape != (*spec.fitted(height, width), 3) or not np.array_equal(whole, kept):
        raise PictureError(
            f"the checkpoint's processor makes {kept.dtype} {list(pixels.shape)} of it, which is no picture that the "
            "model takes"
        )
    return Image.of(height, width, whole.tobytes())


def _load(folder: Path) -> Any:
    kind = "the checkpoint's processor"
    try:
        from transformers import AutoImageProcessor
        from transformers.image_processing_base import ImageProcessingMixin

        fields, _ = ImageProcessingMixin.get_image_processor_dict(folder, local_files_only=True)
        kind = fields.get("image_processor_type") or fields.get("feature_extractor_type") or kind
        of_code = fields.get("auto_map") or {}
        if code := of_code.get("AutoImageProcessor") or of_code.get("AutoFeatureExtractor"):
            raise PictureError(f"the checkpoint brings its processor as code, which is never run ({code})")
        return AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)
    except PictureError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0].replace(str(folder), "the checkpoint")
        raise PictureError(f"transformers cannot make {kind} ({type(error).__name__}: {said})") from None
