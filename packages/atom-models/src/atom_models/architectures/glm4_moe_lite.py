"""GLM-4.7-Flash: https://huggingface.co/zai-org/GLM-4.7-Flash. DeepSeek-V3 in other sizes, with one dense layer."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.architectures.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM


@dataclass(frozen=True, kw_only=True)
class Glm4MoeLiteConfig(DeepseekV3Config):
    """Fields of `config.json`."""

    first_k_dense_replace: int = 1


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    config_class = Glm4MoeLiteConfig
