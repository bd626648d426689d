"""What a checkpoint says of pictures: tokens, sizes and the numbers of its processor. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_models.architectures.registry import other_modalities, picture_defaults, supported_architectures
from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.families.dual import read_clip, read_siglip
from atom_models.vision.families.gemma3 import read_gemma3
from atom_models.vision.families.kimi_k25 import read_kimi_k25
from atom_models.vision.families.mistral3 import read_mistral3
from atom_models.vision.families.of_transformers import read_of_transformers
from atom_models.vision.fields import PREPROCESSOR, check_always, colors, whole
from atom_models.vision.spec import PictureDefaults, VisionSpec
from atom_models.vision.videos.reading import read_videos

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint


@dataclass(frozen=True)
class Vision:
    """What a tower is built from.

    Attributes:
        spec: what a host needs to know.
        config: `vision_config` of the checkpoint's config, and what stands beside it of the tower's projector; empty
            where transformers has the tower.
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
    if checkpoint.architecture not in supported_architectures() and other_modalities(checkpoint.config):
        # transformers reads the config of its own tower.
        return Vision(read_of_transformers(checkpoint, config, _OF_PROCESSORS), {})
    if defaults is None or config is None:
        return None
    if not isinstance(config, Mapping):
        raise CheckpointError(f"config.json: vision_config is {config!r}, not an object")
    return Vision(*_READERS.get(checkpoint.architecture, _read_qwen)(checkpoint, config, defaults))


_MODELS_OF_PROCESSORS = {
    "CLIP": "CLIPModel",
    "Siglip": "SiglipModel",
    "Pixtral": "Mistral3ForConditionalGeneration",
}
# What processors do where their files do not say, as the models that they were made for.
_OF_PROCESSORS = {
    f"{name}ImageProcessor": defaults
    for name, model in _MODELS_OF_PROCESSORS.items()
    if (defaults := picture_defaults(model)) is not None
}
# Those whose files have fields of their own.
_READERS = {
    "CLIPModel": read_clip,
    "Gemma3ForConditionalGeneration": read_gemma3,
    "KimiK25ForConditionalGeneration": read_kimi_k25,
    "Mistral3ForConditionalGeneration": read_mistral3,
    "SiglipModel": read_siglip,
}


def _read_qwen(
    checkpoint: Checkpoint, config: Mapping[str, Any], defaults: PictureDefaults
) -> tuple[VisionSpec, Mapping[str, Any]]:
    processor = checkpoint.preprocessor_config
    _check_processor(processor, config)
    tokens = {name: whole(checkpoint.config, name, "config.json", least=0) for name in _TOKENS}
    least, most = _pixels(processor, defaults.min_pixels, defaults.max_pixels)
    spec = VisionSpec(
        image_token_id=tokens["image_token_id"],
        start_token_id=tokens["vision_start_token_id"],
        end_token_id=tokens["vision_end_token_id"],
        patch_size=whole(config, "patch_size", "config.json: vision_config"),
        merge_size=whole(config, "spatial_merge_size", "config.json: vision_config"),
        min_pixels=least,
        max_pixels=most,
        mean=colors(processor, "image_mean", defaults.mean),
        std=colors(processor, "image_std", defaults.std),
        video=read_videos(checkpoint, config, defaults.video),
    )
    return spec, config


_TOKENS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
# Fields of the processor that repeat some of the tower.
_REPEATED = {
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}


def _check_processor(processor: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuses a processor that does not do as ours, or that is another tower's."""
    check_always(processor)
    for name, of_tower in _REPEATED.items():
        given, expected = processor.get(name), config.get(of_tower)
        if None not in (given, expected) and given != expected:
            raise CheckpointError(
                f"{PREPROCESSOR}: {name} is {given!r}, and config.json says {expected!r} (vision_config.{of_tower}): "
                "the processor is another model's"
            )


def _pixels(processor: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    size = processor.get("size") or {}
    if not isinstance(size, Mapping):
        raise CheckpointError(f"{PREPROCESSOR}: size is {size!r}, not an object")
    found = {"shortest_edge": least, "longest_edge": most}
    for source, names in (
        (size, {"shortest_edge": "shortest_edge", "longest_edge": "longest_edge"}),
        (size, {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}),
        (processor, {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}),
    ):
        found |= {own: whole(source, name, PREPROCESSOR) for name, own in names.items() if source.get(name) is not None}
    least, most = found.values()
    if least > most:
        raise CheckpointError(f"{PREPROCESSOR}: pictures have at least {least} and at most {most} pixels")
    return least, most
