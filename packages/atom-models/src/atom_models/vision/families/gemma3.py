"""Pictures of Gemma 3: all of one size, and of as many tokens, which see each other in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.fields import BILINEAR, PREPROCESSOR, check_always, colors, one_number, whole
from atom_models.vision.spec import PictureDefaults, VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

_TOWER = "config.json: vision_config"
# What transformers takes where a config does not say.
_NUM_TOKENS, _IMAGE, _START, _END = 256, 262_144, 255_999, 256_000


def read_gemma3(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """Sizes and tokens, and the config of the tower with its projector.

    Raises:
        CheckpointError: the processor gives pictures another size than the tower takes, or cuts them in several; or the
            tokens of a picture are no square of means over squares of patches.
    """
    outer, text, processor = checkpoint.config, checkpoint.text_config, checkpoint.preprocessor_config
    check_always(processor, resample=BILINEAR)
    if processor.get("do_pan_and_scan"):
        raise CheckpointError(
            f"{PREPROCESSOR}: do_pan_and_scan is {processor['do_pan_and_scan']!r}, which is not implemented: it can be "
            "false"
        )
    side, patch_size = (one_number(config.get(name), name, _TOWER) for name in ("image_size", "patch_size"))
    size = processor.get("size")
    if size is not None and one_number(size, "size", PREPROCESSOR) != side:
        raise CheckpointError(
            f"{PREPROCESSOR}: size is {size!r}, and config.json says {side} (vision_config.image_size): the processor "
            "is another model's"
        )
    merge_size = _merge_size(outer, side, patch_size)
    image, start, end = (
        _token(outer, name, default)
        for name, default in (("image_token", _IMAGE), ("boi_token", _START), ("eoi_token", _END))
    )
    spec = VisionSpec(
        image_token_id=image,
        start_token_id=start,
        end_token_id=end,
        patch_size=patch_size,
        merge_size=merge_size,
        min_pixels=side**2,
        max_pixels=side**2,
        mean=colors(processor, "image_mean", defaults.mean),
        std=colors(processor, "image_std", defaults.std),
        has_threefold_positions=False,
        resizing="fixed",
        resample="bilinear",
        max_side=side,
        sees_ahead=True,
        written_around="\n\n",
    )
    of_text = {"out_hidden_size": text.get("hidden_size"), "spatial_merge_size": merge_size}
    return spec, {**config, **of_text, "patch_size": patch_size, "image_size": side}


def _merge_size(outer: Mapping[str, Any], side: int, patch_size: int) -> int:
    """Patches on each side of the square whose mean is a token."""
    num_tokens = outer.get("mm_tokens_per_image")
    num_tokens = _NUM_TOKENS if num_tokens is None else whole(outer, "mm_tokens_per_image", "config.json")
    rows, patches = math.isqrt(num_tokens), side // patch_size
    if rows**2 != num_tokens or side % patch_size or patches % rows:
        raise CheckpointError(
            f"config.json: mm_tokens_per_image is {num_tokens}, and a picture has {side} pixels on each side and "
            f"patches of {patch_size}: the tokens must be a square whose rows share the rows of patches evenly"
        )
    return patches // rows


def _token(outer: Mapping[str, Any], name: str, default: int) -> int:
    """A token's id, under its earlier name (``..._index``) or its later one."""
    for full in (f"{name}_id", f"{name}_index"):
        if outer.get(full) is not None:
            return whole(outer, full, "config.json", least=0)
    return default
