"""Tiny random checkpoints that see, and have no file here, as `transformers` saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tiny_architectures import SIZES, redraw
from tiny_models import write_tokenizer

# Pictures have nine tokens.
IMAGE, PATCH, SIDE = 500, 4, 12
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
_CLIP = {"model_type": "clip_vision_model", **_TOWER}
# With more layers than a trial has of other parts.
_DEEP = _CLIP | {"num_hidden_layers": 6}
_SIGLIP = {"model_type": "siglip_vision_model", **_TOWER}
_PIXTRAL = {"model_type": "pixtral", **_TOWER, "head_dim": 16, "image_size": 24}
_ALL_PATCHES = {"vision_feature_select_strategy": "full", "vision_feature_layer": -1}
_BOUND = {
    "image_processor_type": "PixtralImageProcessor",
    "size": {"longest_edge": 24},
    "patch_size": {"height": PATCH, "width": PATCH},
}
_CROPPED = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIDE}} | {
    "crop_size": {"height": SIDE, "width": SIDE}
}
_STRETCHED = {"image_processor_type": "SiglipImageProcessor", "size": {"height": SIDE, "width": SIDE}}

# By name: the model type, its fields, and those of its processor.
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava": ("llava", {"vision_config": _CLIP}, _CROPPED),
    "llava_siglip": (
        "llava",
        {"vision_config": _SIGLIP, "vision_feature_select_strategy": "full", "text_config": {"model_type": "olmo2"}},
        _STRETCHED,
    ),
    "vipllava": ("vipllava", {"vision_config": _DEEP, "vision_feature_layers": [-1, -2, -6]}, _CROPPED),
}
# Pictures of many sizes, whose rows tokens end: as above.
IN_ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pixtral": ("llava", {"vision_config": _PIXTRAL, **_ALL_PATCHES}, _BOUND),
}
_QWEN2_VL = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_SQUARE = {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
# Those whose pictures take more than features of one size: as above, and refused.
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # Tokens of a text see those behind them.
    "paligemma": ("paligemma", {"vision_config": {**_SIGLIP, "projection_dim": 64}}, _STRETCHED),
    "llava_next": ("llava_next", {"vision_config": _CLIP}, {"image_processor_type": "LlavaNextImageProcessor"}),
    "qwen2_vl": (
        "qwen2_vl",
        {"text_config": _QWEN2_VL, "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}},
        {"image_processor_type": "Qwen2VLImageProcessor"},
    ),
    "smolvlm": ("smolvlm", {"vision_config": _TOWER}, {"image_processor_type": "SmolVLMImageProcessor"}),
    "internvl": (
        "internvl",
        {"text_config": {"model_type": "qwen2"}, "vision_config": {**_TOWER, **_SQUARE}},
        {"image_processor_type": "GotOcr2ImageProcessor"},
    ),
    "aya_vision": (
        "aya_vision",
        {"text_config": {"model_type": "cohere2", "sliding_window": 8}, "vision_config": _SIGLIP},
        {"image_processor_type": "GotOcr2ImageProcessor"},
    ),
}
# The decoder of each, where it is not Llama's, and those that spell the image token in the earlier way.
_TEXT = {"paligemma": "gemma", "qwen2_vl": "qwen2_vl_text"}
_INDEX = ("llava", "vipllava", "llava_next", "aya_vision")


def make_fallback_seeing(name: str, folder: str | Path, **overrides: Any) -> Path:
    """Writes a float32 checkpoint (a key of `SEEING`, `REFUSED` or `IN_ROWS`), and returns its folder."""
    known = SEEING | REFUSED | IN_ROWS
    model_type, fields, processor = known[name]
    folder, sizes = Path(folder), SIZES | {"vocab_size": 512, "max_position_embeddings": 512}
    text = {"model_type": _TEXT.get(name, "llama"), **sizes, **fields.get("text_config", {})}
    token = {"image_token_index" if model_type in _INDEX else "image_token_id": IMAGE}
    config = transformers.AutoConfig.for_model(model_type, **(fields | token | overrides | {"text_config": text}))
    torch.manual_seed([*sorted(SEEING | REFUSED), *IN_ROWS].index(name))
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    redraw(model)
    model.save_pretrained(folder)
    write_tokenizer(folder, 512)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder
