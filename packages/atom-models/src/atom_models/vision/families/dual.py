"""Pictures of encoders with two towers: all of one size, and a prompt each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.fields import PREPROCESSOR, check_always, colors, one_number
from atom_models.vision.sizes import Resizing
from atom_models.vision.spec import PictureDefaults, VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

_TOWER = "config.json: vision_config"
_IMAGE_SIZE = 224


def read_clip(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """Sizes, and the config of the tower with its projection.

    Raises:
        CheckpointError: the processor gives pictures another size than the tower takes.
    """
    outer, processor = checkpoint.config, checkpoint.preprocessor_config
    size, side = processor.get("size") or {}, _side(config)
    is_cropped = processor.get("do_center_crop", True) is not False
    if is_cropped and (crop := processor.get("crop_size")) is not None:
        _check_side(one_number(crop, "crop_size", PREPROCESSOR), side, "crop_size")
    stretched = isinstance(size, Mapping) and "height" in size
    if not is_cropped and not stretched:
        raise CheckpointError(
            f"{PREPROCESSOR}: do_center_crop is false, and size is {size!r}: pictures would have many sizes; size can "
            f"be {{'height': {side}, 'width': {side}}} there"
        )
    projection = outer.get("projection_dim") or 512
    spec = _spec(processor, defaults, config, side, patch_size=32, resizing="fixed" if stretched else "cropped")
    return spec, _of_tower(config, spec, side, projection)


def read_siglip(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """As `read_clip`; pictures are stretched, and patches at their ends that would be cut short are left out."""
    side = _side(config)
    spec = _spec(checkpoint.preprocessor_config, defaults, config, side, patch_size=16, resizing="fixed")
    return spec, _of_tower(config, spec, side, config.get("hidden_size") or 768)


def _spec(
    processor: Mapping[str, Any],
    defaults: PictureDefaults,
    config: Mapping[str, Any],
    side: int,
    *,
    patch_size: int,
    resizing: Resizing,
) -> VisionSpec:
    """All of a picture is one square of patches, and one token."""
    check_always(processor)
    if (size := processor.get("size")) is not None:
        _check_side(one_number(size, "size", PREPROCESSOR), side, "size")
    given = config.get("patch_size")
    patch_size = patch_size if given is None else one_number(given, "patch_size", _TOWER)
    if patch_size > side:
        raise CheckpointError(f"{_TOWER}: patch_size is {patch_size}, and image_size {side}: it can be {side} at most")
    merge_size = side // patch_size
    num_pixels = (merge_size * patch_size) ** 2
    return VisionSpec(
        # Nothing of a text beside it could be taken for it: see `stands_alone`.
        image_token_id=0,
        start_token_id=None,
        end_token_id=None,
        patch_size=patch_size,
        merge_size=merge_size,
        min_pixels=num_pixels,
        max_pixels=num_pixels,
        mean=colors(processor, "image_mean", defaults.mean),
        std=colors(processor, "image_std", defaults.std),
        has_threefold_positions=False,
        resizing=resizing,
        max_side=side,
        stands_alone=True,
    )


def _side(config: Mapping[str, Any]) -> int:
    size = config.get("image_size")
    return _IMAGE_SIZE if size is None else one_number(size, "image_size", _TOWER)


def _check_side(given: int, side: int, name: str) -> None:
    if given != side:
        raise CheckpointError(
            f"{PREPROCESSOR}: {name} is {given}, and config.json says {side} (vision_config.image_size): the processor "
            "is another model's"
        )


def _of_tower(config: Mapping[str, Any], spec: VisionSpec, side: int, width: int) -> Mapping[str, Any]:
    own = {"patch_size": spec.patch_size, "image_size": side, "spatial_merge_size": spec.merge_size}
    return {**config, **own, "out_hidden_size": width}
