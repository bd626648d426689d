"""`FAMILIES`: how classes of processors of transformers are asked, and what they give back becomes pixels again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atom_core.models import VisionSpec
from atom_server.pictures.data_url import PictureError


@dataclass(frozen=True)
class ProcessorFamily:
    """A class of processors.

    Attributes:
        told: what it is told beside the picture, by the processor and what the model takes.
        pixels: what it gives for one picture -> ``[height, width, 3]``.
    """

    told: Callable[[Any, VisionSpec], dict[str, Any]]
    pixels: Callable[[Mapping[str, Any], Any], np.ndarray]


def _nothing(processor: Any, spec: VisionSpec) -> dict[str, Any]:
    return {}


def _area(processor: Any, spec: VisionSpec) -> dict[str, Any]:
    """The area has its own bounds, and the host's where a step has room for less."""
    least, most = (processor.size[name] for name in ("shortest_edge", "longest_edge"))
    return {"size": {"shortest_edge": least, "longest_edge": min(most, spec.max_pixels)}}


def _patch(processor: Any, spec: VisionSpec) -> dict[str, Any]:
    """As its caller does: sides become multiples of what is one token."""
    if spec.max_tokens:
        raise PictureError(
            f"max_num_image_tokens bounds pictures to {spec.max_tokens} tokens, which a {type(processor).__name__} "
            "cannot be told"
        )
    return {"patch_size": {"height": spec.unit, "width": spec.unit}}


def _whole(found: Mapping[str, Any], processor: Any) -> np.ndarray:
    """The processor gives ``[1, 3, height, width]``."""
    [pixels] = found["pixel_values"]
    return np.moveaxis(pixels, 0, -1)


def _of_patches(found: Mapping[str, Any], processor: Any) -> np.ndarray:
    """The processor gives ``[patches, 3 * frames * size * size]``, square by square; each frame is the picture."""
    [(_, rows, columns)] = found["image_grid_thw"]
    side, size = processor.merge_size, processor.patch_size
    shape = (rows // side, columns // side, side, side, 3, processor.temporal_patch_size, size, size)
    pixels = found["pixel_values"].reshape(shape).transpose(0, 2, 6, 1, 3, 7, 4, 5)
    return pixels[..., 0].reshape(rows * size, columns * size, 3)


FAMILIES: Mapping[str, ProcessorFamily] = {
    "CLIPImageProcessorPil": ProcessorFamily(_nothing, _whole),
    "Gemma3ImageProcessorPil": ProcessorFamily(_nothing, _whole),
    "PixtralImageProcessorPil": ProcessorFamily(_patch, _whole),
    "Qwen2VLImageProcessorPil": ProcessorFamily(_area, _of_patches),
    "SiglipImageProcessorPil": ProcessorFamily(_nothing, _whole),
}
"""By the name of the class."""
