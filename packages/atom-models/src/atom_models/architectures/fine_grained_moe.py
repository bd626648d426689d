"""What DeepSeek, GLM and relatives share: many small experts, some that see every token, dense first layers.

DeepSeekMoE: Dai et al. 2024, https://arxiv.org/abs/2401.06066.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_models.architectures.llama import LlamaConfig
from atom_models.layers import MoEConfig, RoutingConfig, SharedExpertsConfig


@dataclass(frozen=True, kw_only=True)
class FineGrainedMoEConfig(LlamaConfig):
    """Fields of `config.json`; `intermediate_size` is that of layers without experts."""

    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int = 0
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1

    @property
    def routing(self) -> RoutingConfig:
        return biased_sigmoid_routing(self)

    def has_experts(self, layer_id: int) -> bool:
        return layer_id >= self.first_k_dense_replace and layer_id % self.moe_layer_freq == 0

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        if not self.has_experts(layer_id):
            return None
        shared = SharedExpertsConfig(self.moe_intermediate_size * self.n_shared_experts)
        return MoEConfig(
            num_experts=self.n_routed_experts,
            top_k=self.num_experts_per_tok,
            hidden_size=self.hidden_size,
            intermediate_size=self.moe_intermediate_size,
            hidden_act=self.activation,
            routing=self.routing,
            shared_experts=shared if self.n_shared_experts else None,
        )


def biased_sigmoid_routing(config: FineGrainedMoEConfig) -> RoutingConfig:
    """Sigmoid scores, groups of experts judged by their best two, and a bias that balances the load: DeepSeek-V3's."""
    return RoutingConfig(
        scoring="sigmoid",
        renormalize=config.norm_topk_prob,
        num_groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
        scaling_factor=config.routed_scaling_factor,
        correction_bias="gate.e_score_correction_bias",
        float32=True,
    )
