"""How the processors of families resize pictures. Torch-free."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from atom_models.vision.spec import VisionSpec

Resample = Literal["bicubic", "bilinear"]
"""The filter by which a picture is resized."""
Resizing = Literal["rounded", "shrunk", "padded", "fixed", "cropped"]
"""How a picture gets its size: "rounded" to multiples of the unit within bounds of its area, "shrunk" where a side is
too long and then stretched to multiples of it, made smaller where it has too many patches and "padded", stretched to
one "fixed" size, or brought to it by its shorter side and "cropped" to its middle."""


def size_of(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """The height and width to which a picture is resized.

    Raises:
        ValueError: one side is more than 200 times the other, where sides are rounded or cropped.
    """
    if spec.resizing == "rounded":
        return _rounded(height, width, spec)
    if spec.resizing == "fixed":
        return spec.max_side, spec.max_side
    if spec.resizing == "cropped":
        _check_shape(height, width)
        shorter = min(height, width)
        return spec.max_side * height // shorter, spec.max_side * width // shorter
    return _shrunk(height, width, spec) if spec.resizing == "shrunk" else _in_patches(height, width, spec)


def _rounded(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """As the processors of Qwen's models compute it."""
    _check_shape(height, width)
    unit = spec.unit
    # A side that comes to nothing grows below.
    rows, columns = (round(side / unit) * unit for side in (height, width))
    if rows * columns > spec.max_pixels:
        shrink = math.sqrt(height * width / spec.max_pixels)
        rows, columns = (max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))
    elif rows * columns < spec.min_pixels:
        grow = math.sqrt(spec.min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / unit) * unit for side in (height, width))
    return rows, columns


def _check_shape(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"a picture of {width} x {height} pixels: one side is more than 200 times the other")


def _shrunk(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """As the processors of Pixtral and Mistral 3."""
    ratio = max(height / spec.max_side, width / spec.max_side)
    if ratio > 1:
        # A thin side that comes to nothing is kept, where theirs would fail.
        height, width = (max(1, math.floor(side / ratio)) for side in (height, width))
    rows, columns = (-(-side // spec.unit) * spec.unit for side in (height, width))
    return rows, columns


def _in_patches(height: int, width: int, spec: VisionSpec) -> tuple[int, int]:
    """As the processors of Kimi-K2.5: never larger than it was."""
    patch, most = spec.patch_size, spec.max_pixels // spec.patch_size**2
    count = max(1.0, height // patch) * max(1.0, width // patch)
    scale = min(1.0, math.sqrt(most / count), spec.max_side / height, spec.max_side / width)
    rows, columns = (min(max(1, int(side * scale)), spec.max_side) for side in (height, width))
    return rows, columns
