"""What DeepSeek, GLM and relatives share: many small experts, some that see every token, dense first layers.

DeepSeekMoE: Dai et al. 2024, https://arxiv.org/abs/2401.06066.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.architectures.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP
from atom_models.build_context import BuildContext
from atom_models.config.prediction_layers import prediction_layer_prefixes
from atom_models.layers import MoE, RoutingConfig, SharedExpertsConfig


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


class FineGrainedMoEDecoderLayer(LlamaDecoderLayer):
    def make_mlp(
        self, config: FineGrainedMoEConfig, context: BuildContext, *, layer_id: int, prefix: str
    ) -> MoE | LlamaMLP:
        if not config.has_experts(layer_id):
            return LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        shared = SharedExpertsConfig(config.moe_intermediate_size * config.n_shared_experts)
        return MoE(
            context,
            f"{prefix}.mlp",
            num_experts=config.n_routed_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            hidden_act=config.hidden_act,
            routing=config.routing,
            shared_experts=shared if config.n_shared_experts else None,
        )


class FineGrainedMoEForCausalLM(LlamaForCausalLM):
    """Layers of the checkpoint that predict further tokens, behind the last one, are left unread."""

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        self.ignored_prefixes = prediction_layer_prefixes(config)
