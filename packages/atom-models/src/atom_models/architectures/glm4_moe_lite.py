"""GLM-4.7-Flash: https://huggingface.co/zai-org/GLM-4.7-Flash. DeepSeek-V3 in other sizes, with one dense layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_models.architectures.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM


@dataclass(frozen=True, kw_only=True)
class Glm4MoeLiteConfig(DeepseekV3Config):
    """Fields of `config.json`; `mlp_layer_types`, where given, says which layers have experts.

    Layers that predict further tokens have some, and are not in the list.
    """

    mlp_layer_types: Sequence[str] | None = None
    first_k_dense_replace: int = 1

    def has_experts(self, layer_id: int) -> bool:
        if self.mlp_layer_types is None or layer_id >= len(self.mlp_layer_types):
            return super().has_experts(layer_id)
        return self.mlp_layer_types[layer_id] == "sparse"


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    config_class = Glm4MoeLiteConfig
