"""Fields of the files that say how pictures are prepared. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

PREPROCESSOR = "preprocessor_config.json"
_BICUBIC = 3
# What our processor does, by the fields with which others say so; where they say something else, it is not ours.
_ALWAYS: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": _BICUBIC,
}


def check_always(processor: Mapping[str, Any]) -> None:
    """Refuses a processor that does not do as ours."""
    for name, value in _ALWAYS.items():
        if processor.get(name, value) not in (value, None):
            raise CheckpointError(
                f"{PREPROCESSOR}: {name} is {processor[name]!r}, which is not implemented; it can be {value}"
            )
    factor = processor.get("rescale_factor")
    if factor is not None and not math.isclose(number(factor, "rescale_factor"), 1 / 255, rel_tol=1e-6):
        raise CheckpointError(
            f"{PREPROCESSOR}: rescale_factor is {factor!r}, which is not implemented; it can be 1 / 255"
        )


def colors(processor: Mapping[str, Any], name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    """Three numbers of the processor, for red, green and blue; those that it divides by are not 0."""
    given = processor.get(name)
    if given is None:
        return default
    if not isinstance(given, list) or len(given) != 3:
        raise CheckpointError(f"{PREPROCESSOR}: {name} is {given!r}; it must be a list of three numbers")
    red, green, blue = (number(one, name) for one in given)
    if name == "image_std" and not all((red, green, blue)):
        raise CheckpointError(f"{PREPROCESSOR}: image_std is {(red, green, blue)}; no number of it can be 0")
    return red, green, blue


def number(value: Any, name: str) -> float:
    """A finite number of the processor."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CheckpointError(f"{PREPROCESSOR}: {name} has {value!r}, not a finite number")
    return float(value)


def whole(fields: Mapping[str, Any], name: str, where: str, *, least: int = 1) -> int:
    """An integer from `least` on."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        lacks = "lacks" if value is None else f"has {value!r} as"
        raise CheckpointError(f"{where} {lacks} {name}: a model that takes pictures needs an integer from {least} on")
    return value
