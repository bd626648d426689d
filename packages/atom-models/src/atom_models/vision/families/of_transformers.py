"""Pictures of checkpoints whose tower is that of transformers: what their processor does with each, as ours does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_models.fallback.admission import refuse_pictures
from atom_models.vision.families.dual import read_clip, read_siglip
from atom_models.vision.families.mistral3 import read_unmerged
from atom_models.vision.fields import PREPROCESSOR, whole
from atom_models.vision.spec import PictureDefaults, VisionSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

# Processors that do with every picture what ours does. Others cut pictures in several.
_READERS = {
    "CLIPImageProcessor": read_clip,
    "SiglipImageProcessor": read_siglip,
    "PixtralImageProcessor": read_unmerged,
}


def read_of_transformers(checkpoint: Checkpoint, config: Any, defaults: Mapping[str, PictureDefaults]) -> VisionSpec:
    """Sizes and tokens.

    Args:
        config: what the checkpoint has as `vision_config`.
        defaults: what each of these processors does where its file does not say.

    Raises:
        UnsupportedArchitectureError: pictures are prepared in another way.
        CheckpointError: a field is missing, or the processor gives pictures another size than the tower takes.
    """
    processor, model_type = checkpoint.preprocessor_config, checkpoint.model_type
    kind = str(processor.get("image_processor_type") or processor.get("feature_extractor_type"))
    name = kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if name not in _READERS:
        known = " or ".join(_READERS)
        raise refuse_pictures(model_type, f"{PREPROCESSOR} has the image_processor_type {kind!r}; it can be {known}")
    if not isinstance(config, Mapping):
        raise refuse_pictures(model_type, f"config.json: vision_config is {config!r}, not an object")
    spec, _ = _READERS[name](checkpoint, config, defaults[name])
    token = "image_token_id" if checkpoint.config.get("image_token_id") is not None else "image_token_index"
    image = whole(checkpoint.config, token, "config.json", least=0)
    return replace(spec, image_token_id=image, merge_size=1, stands_alone=False)
