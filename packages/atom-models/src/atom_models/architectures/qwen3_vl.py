"""Qwen3-VL: Bai et al. 2025, https://arxiv.org/abs/2511.21631. Qwen3 that sees, by a tower with DeepStack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.architectures.qwen3 import Qwen3Config, Qwen3ForCausalLM
from atom_models.vision.sees import Sees
from atom_models.vision.towers.qwen3_vl import Qwen3VLVisionTower


@dataclass(frozen=True)
class Qwen3VLConfig(Qwen3Config):
    """Fields of `text_config`."""

    @property
    def rope(self) -> Mapping[str, Any]:
        """Frequencies take turns among time, height and width."""
        return {"mrope_section": [24, 20, 20], **self.rope_parameters, "mrope_interleaved": True}


class Qwen3VLForConditionalGeneration(Sees, Qwen3ForCausalLM):
    config_class = Qwen3VLConfig
    tower = Qwen3VLVisionTower
    decoder_prefix = "model.language_model"
