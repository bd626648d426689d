"""Qwen3-VL, dense and as mixtures: Bai et al. 2025, https://arxiv.org/abs/2511.21631. Qwen3 that sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom_models.architectures.qwen3 import Qwen3Config, Qwen3ForCausalLM
from atom_models.architectures.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from atom_models.layers import MoEConfig, RoutingConfig
from atom_models.vision.sees import Sees
from atom_models.vision.towers.qwen3_vl import Qwen3VLVisionTower


@dataclass(frozen=True)
class Qwen3VLConfig(Qwen3Config):
    """Fields of `text_config`."""

    @property
    def rope(self) -> Mapping[str, Any]:
        return rope_in_turns(self.rope_parameters)


@dataclass(frozen=True, kw_only=True)
class Qwen3VLMoeConfig(Qwen3MoeConfig):
    """Fields of `text_config`."""

    @property
    def rope(self) -> Mapping[str, Any]:
        return rope_in_turns(self.rope_parameters)

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        """Those of Qwen3-MoE. Weights of the chosen ones sum to one, whatever the config says.

        All of a layer are stored in one tensor, inputs before outputs.
        """
        experts = super().experts_of(layer_id)
        if experts is None:
            return None
        return replace(experts, routing=RoutingConfig(renormalize=True), fused_transposed=True)


def rope_in_turns(rope_parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Frequencies take turns among time, height and width."""
    return {"mrope_section": [24, 20, 20], **rope_parameters, "mrope_interleaved": True}


class Qwen3VLForConditionalGeneration(Sees, Qwen3ForCausalLM):
    config_class = Qwen3VLConfig
    tower = Qwen3VLVisionTower
    decoder_prefix = "model.language_model"


class Qwen3VLMoeForConditionalGeneration(Sees, Qwen3MoeForCausalLM):
    config_class = Qwen3VLMoeConfig
    tower = Qwen3VLVisionTower
    decoder_prefix = "model.language_model"
