"""Qwen2.5-VL: Bai et al. 2025, https://arxiv.org/abs/2502.13923. Qwen2 that sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.qwen2 import Qwen2Config, Qwen2ForCausalLM
from atom_models.vision.sees import Sees
from atom_models.vision.towers.qwen2_5_vl import Qwen2_5VLVisionTower


@dataclass(frozen=True)
class Qwen2_5VLConfig(Qwen2Config):
    """Fields of `config.json`, or of its `text_config`."""

    # Published configs are not nested: what is said of pictures stands beside the fields of the text.
    unread: ClassVar[tuple[str, ...]] = (
        *("vision_config", "image_token_id", "video_token_id", "vision_token_id"),
        *("vision_start_token_id", "vision_end_token_id"),
    )

    @property
    def rope(self) -> Mapping[str, Any]:
        return {"mrope_section": [16, 24, 24], **self.rope_parameters}


class Qwen2_5_VLForConditionalGeneration(Sees, Qwen2ForCausalLM):
    """Weights go by the names of the published checkpoints, by which quantized ones name layers as well."""

    config_class = Qwen2_5VLConfig
    tower = Qwen2_5VLVisionTower
    vision_prefixes = ("visual",)
