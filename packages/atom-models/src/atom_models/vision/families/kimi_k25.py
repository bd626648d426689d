"""What Kimi-K2.5 sees: a bound of patches and of the sides, and black where a side is no multiple of the unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.families.kimi_k25_videos import read_kimi_videos
from atom_models.vision.fields import PREPROCESSOR, check_always, colors, one_number, whole
from atom_models.vision.spec import PictureDefaults, VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint


def read_kimi_k25(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """Sizes and tokens, and the config of the tower with its projector, in the publisher's fields or transformers'."""
    outer, processor = checkpoint.config, checkpoint.preprocessor_config
    processor = {**processor, **(processor.get("media_proc_cfg") or {})}
    check_always(processor)
    if processor.get("fixed_output_tokens") is not None:
        raise CheckpointError(
            f"{PREPROCESSOR}: fixed_output_tokens is {processor['fixed_output_tokens']!r}, which is not implemented; "
            "it can be null"
        )
    patch_size = whole(config, "patch_size", "config.json: vision_config")
    merge_size = one_number(config.get("merge_kernel_size", 2), "merge_kernel_size", "config.json: vision_config")
    _check_repeated(processor, patch_size, merge_size)
    name = "media_placeholder_token_id" if outer.get("image_token_id") is None else "image_token_id"
    start, end = (
        None if outer.get(name) is None else whole(outer, name, "config.json", least=0)
        for name in ("vision_start_token_id", "vision_end_token_id")
    )
    patches, patches_of_side = _bounds(processor, defaults)
    spec = VisionSpec(
        image_token_id=whole(outer, name, "config.json", least=0),
        start_token_id=start,
        end_token_id=end,
        patch_size=patch_size,
        merge_size=merge_size,
        min_pixels=(patch_size * merge_size) ** 2,
        max_pixels=patches * patch_size**2,
        mean=colors(processor, "image_mean", defaults.mean),
        std=colors(processor, "image_std", defaults.std),
        has_threefold_positions=False,
        resizing="padded",
        max_side=patches_of_side * patch_size,
    )
    spec = replace(spec, video=read_kimi_videos(checkpoint, config, processor, spec, defaults.video))
    of_text = {"out_hidden_size": checkpoint.text_config.get("hidden_size"), "spatial_merge_size": merge_size}
    beside = {name: outer[name] for name in ("projection_layer_norm_eps",) if outer.get(name) is not None}
    return spec, {**config, **beside, **of_text}


def _check_repeated(processor: Mapping[str, Any], patch_size: int, merge_size: int) -> None:
    """Refuses the processor of another tower."""
    names = {"patch_size": patch_size, "merge_kernel_size": merge_size, "merge_size": merge_size}
    for name, expected in names.items():
        given = processor.get(name)
        if given is not None and one_number(given, name, PREPROCESSOR) != expected:
            raise CheckpointError(
                f"{PREPROCESSOR}: {name} is {given!r}, and config.json says {expected} (vision_config): the processor "
                "is another model's"
            )


def _bounds(processor: Mapping[str, Any], defaults: PictureDefaults) -> tuple[int, int]:
    """The most patches of a picture, and of a side of it."""
    found = {"in_patch_limit": defaults.max_pixels // 14**2, "patch_limit_on_one_side": defaults.max_side // 14}
    size = processor.get("size")
    if size is not None:
        found["patch_limit_on_one_side"] = one_number(size, "size", PREPROCESSOR)
    for name, other in (("in_patch_limit", "max_patches"), ("patch_limit_on_one_side", None)):
        for one in (other, name):
            if one is not None and processor.get(one) is not None:
                found[name] = whole(processor, one, PREPROCESSOR)
    return found["in_patch_limit"], found["patch_limit_on_one_side"]
