"""Pictures of Mistral 3: rows that a token ends, and a bound of the longer side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.fields import PREPROCESSOR, added_token, check_always, colors, one_number, whole
from atom_models.vision.spec import PictureDefaults, VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

# The tokens that end a row and a picture, with their ids in the published tokenizers.
_ROW_END, _PICTURE_END = ("[IMG_BREAK]", 12), ("[IMG_END]", 13)
# What a config says of the projector, beside `vision_config`.
_BESIDE = ("projector_hidden_act", "multimodal_projector_bias", "vision_feature_layer", "spatial_merge_size")


def read_unmerged(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """As `read_mistral3`, of earlier models whose patches are tokens, which have no field that says so."""
    return read_mistral3(checkpoint, config, defaults, merge_size=1)


def read_mistral3(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults, merge_size: int | None = None
) -> tuple[VisionSpec, Mapping[str, Any]]:
    """Sizes and tokens, and the config of the tower with its projector.

    The processor's size of a patch is without effect: the tower's counts, as in that of transformers.
    """
    outer, text, processor = checkpoint.config, checkpoint.text_config, checkpoint.preprocessor_config
    check_always(processor)
    name = "image_token_id" if outer.get("image_token_id") is not None else "image_token_index"
    patch_size, merge_size = (
        whole(config, "patch_size", "config.json: vision_config"),
        merge_size or _merge_size(outer),
    )
    unit, max_side = patch_size * merge_size, _longest_edge(processor, config, defaults)
    row_end, picture_end = (
        known if (found := added_token(checkpoint.path, text)) is None else found
        for text, known in (_ROW_END, _PICTURE_END)
    )
    spec = VisionSpec(
        image_token_id=whole(outer, name, "config.json", least=0),
        start_token_id=None,
        end_token_id=picture_end,
        patch_size=patch_size,
        merge_size=merge_size,
        min_pixels=unit**2,
        max_pixels=(-(-max_side // unit) * unit) ** 2,
        mean=colors(processor, "image_mean", defaults.mean),
        std=colors(processor, "image_std", defaults.std),
        has_threefold_positions=False,
        resizing="shrunk",
        max_side=max_side,
        row_token_id=row_end,
    )
    beside = {name: outer[name] for name in _BESIDE if outer.get(name) is not None}
    of_text = {"out_hidden_size": text.get("hidden_size"), "projector_norm_eps": text.get("rms_norm_eps")}
    theta = {} if config.get("rope_theta") is None else {"rope_theta": config["rope_theta"]}
    rope = {"rope_parameters": {**theta, **(config.get("rope_parameters") or {})}}
    return spec, {**config, **beside, **of_text, **rope}


def _merge_size(outer: Mapping[str, Any]) -> int:
    return 2 if outer.get("spatial_merge_size") is None else whole(outer, "spatial_merge_size", "config.json")


def _longest_edge(processor: Mapping[str, Any], config: Mapping[str, Any], defaults: PictureDefaults) -> int:
    """What the processor says; its class's number if it says nothing; the tower's where there is no processor."""
    size = processor.get("size")
    if size is None and not processor and config.get("image_size") is not None:
        return one_number(config["image_size"], "image_size", "config.json: vision_config")
    if size is None:
        return defaults.max_side
    if not isinstance(size, Mapping):
        raise CheckpointError(f"{PREPROCESSOR}: size is {size!r}, not an object")
    given = {name: value for name, value in size.items() if value is not None}
    return one_number(given.get("longest_edge", given), "size", PREPROCESSOR)
