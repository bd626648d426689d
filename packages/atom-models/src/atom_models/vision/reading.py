"""What a checkpoint says of pictures: tokens, sizes and the numbers of its processor. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_models.architectures.registry import picture_defaults
from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.spec import VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

_FILE = "preprocessor_config.json"
_BICUBIC = 3


@dataclass(frozen=True)
class Vision:
    """What a tower is built from.

    Attributes:
        spec: what a host needs to know.
        config: `vision_config` of the checkpoint's config.
    """

    spec: VisionSpec
    config: Mapping[str, Any]


def vision_spec(checkpoint: Checkpoint) -> VisionSpec | None:
    """Sizes and tokens of pictures; None of a model that takes none here.

    Raises:
        CheckpointError: a field is missing, is none that could be meant, or asks for what is not implemented.
    """
    vision = read_vision(checkpoint)
    return None if vision is None else vision.spec


def read_vision(checkpoint: Checkpoint) -> Vision | None:
    """As `vision_spec`, with the config of the tower."""
    defaults, config = picture_defaults(checkpoint.architecture), checkpoint.config.get("vision_config")
    if defaults is None or config is None:
        return None
    if not isinstance(config, Mapping):
        raise CheckpointError(f"config.json: vision_config is {config!r}, not an object")
    processor = checkpoint.preprocessor_config
    _check_processor(processor, config)
    tokens = {name: _whole(checkpoint.config, name, "config.json", least=0) for name in _TOKENS}
    least, most = _pixels(processor, defaults.min_pixels, defaults.max_pixels)
    spec = VisionSpec(
        image_token_id=tokens["image_token_id"],
        start_token_id=tokens["vision_start_token_id"],
        end_token_id=tokens["vision_end_token_id"],
        patch_size=_whole(config, "patch_size", "config.json: vision_config"),
        merge_size=_whole(config, "spatial_merge_size", "config.json: vision_config"),
        min_pixels=least,
        max_pixels=most,
        mean=_colors(processor, "image_mean", defaults.mean),
        std=_colors(processor, "image_std", defaults.std),
    )
    if not all(spec.std):
        raise CheckpointError(f"{_FILE}: image_std is {spec.std}; no number of it can be 0")
    return Vision(spec, config)


_TOKENS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
# What our processor does, by the fields with which others say so; where they say something else, it is not ours.
_ALWAYS: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": _BICUBIC,
}
# Fields of the processor that repeat some of the tower.
_REPEATED = {
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}


def _check_processor(processor: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuses a processor that does not do as ours, or that is another tower's."""
    for name, value in _ALWAYS.items():
        if processor.get(name, value) not in (value, None):
            raise CheckpointError(
                f"{_FILE}: {name} is {processor[name]!r}, which is not implemented; it can be {value}"
            )
    factor = processor.get("rescale_factor")
    if factor is not None and not math.isclose(_number(factor, "rescale_factor"), 1 / 255, rel_tol=1e-6):
        raise CheckpointError(f"{_FILE}: rescale_factor is {factor!r}, which is not implemented; it can be 1 / 255")
    for name, of_tower in _REPEATED.items():
        given, expected = processor.get(name), config.get(of_tower)
        if None not in (given, expected) and given != expected:
            raise CheckpointError(
                f"{_FILE}: {name} is {given!r}, and config.json says {expected!r} (vision_config.{of_tower}): the "
                "processor is another model's"
            )


def _pixels(processor: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    size = processor.get("size") or {}
    if not isinstance(size, Mapping):
        raise CheckpointError(f"{_FILE}: size is {size!r}, not an object")
    found = {"shortest_edge": least, "longest_edge": most}
    for source, names in (
        (size, {"shortest_edge": "shortest_edge", "longest_edge": "longest_edge"}),
        (size, {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}),
        (processor, {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}),
    ):
        found |= {own: _whole(source, name, _FILE) for name, own in names.items() if source.get(name) is not None}
    least, most = found.values()
    if least > most:
        raise CheckpointError(f"{_FILE}: pictures have at least {least} and at most {most} pixels")
    return least, most


def _colors(processor: Mapping[str, Any], name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    given = processor.get(name)
    if given is None:
        return default
    if not isinstance(given, list) or len(given) != 3:
        raise CheckpointError(f"{_FILE}: {name} is {given!r}; it must be a list of three numbers")
    red, green, blue = (_number(one, name) for one in given)
    return red, green, blue


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CheckpointError(f"{_FILE}: {name} has {value!r}, not a finite number")
    return float(value)


def _whole(fields: Mapping[str, Any], name: str, where: str, *, least: int = 1) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        lacks = "lacks" if value is None else f"has {value!r} as"
        raise CheckpointError(f"{where} {lacks} {name}: a model that takes pictures needs an integer from {least} on")
    return value
