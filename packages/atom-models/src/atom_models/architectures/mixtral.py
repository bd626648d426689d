"""Mixtral: Jiang et al. 2024, https://arxiv.org/abs/2401.04088. Mistral with a mixture of experts for each MLP."""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.architectures.llama import LlamaForCausalLM
from atom_models.architectures.mistral import MistralConfig
from atom_models.layers import MoEConfig, RoutingConfig


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(MistralConfig):
    """Fields of `config.json`; `intermediate_size` is that of one expert. Without `sliding_window` all is seen."""

    sliding_window: int | None = None

    num_local_experts: int
    num_experts_per_tok: int = 2

    def experts_of(self, layer_id: int) -> MoEConfig:
        return MoEConfig(
            num_experts=self.num_local_experts,
            top_k=self.num_experts_per_tok,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            hidden_act=self.activation,
            routing=RoutingConfig(renormalize=True),
            name="block_sparse_moe",
        )


class MixtralForCausalLM(LlamaForCausalLM):
    config_class = MixtralConfig
