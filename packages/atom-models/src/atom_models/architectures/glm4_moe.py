"""GLM-4.5 and its successors: GLM-4.5 team 2025, https://arxiv.org/abs/2508.06471.

A deep and narrow mixture of experts: the first layers dense, a shared expert in all others, routing as in DeepSeek-V3,
half of each head rotated, biases in q, k and v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.architectures.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
)
from atom_models.architectures.prediction_layers import prediction_layer_prefixes
from atom_models.build_context import BuildContext
from atom_models.layers import MoE, RMSNorm, RoutingConfig, SharedExpertsConfig


@dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig(LlamaConfig):
    """Fields of `config.json`; `attention_bias` is that of q, k and v."""

    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int = 1
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: int = 1
    use_qk_norm: bool = False

    @property
    def routing(self) -> RoutingConfig:
        return RoutingConfig(
            scoring="sigmoid",
            renormalize=self.norm_topk_prob,
            num_groups=self.n_group,
            top_groups=self.topk_group,
            group_score="top2",
            scaling_factor=self.routed_scaling_factor,
            correction_bias="gate.e_score_correction_bias",
            float32=True,
        )


class Glm4MoeDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: Glm4MoeConfig, context: BuildContext, *, layer_id: int, **seams: Any
    ) -> LlamaAttention:
        return LlamaAttention(config, context, output_bias=False, head_norms=config.use_qk_norm, **seams)

    def make_mlp(
        self, config: Glm4MoeConfig, context: BuildContext, *, layer_id: int, prefix: str, then: RMSNorm
    ) -> MoE | LlamaMLP:
        if layer_id < config.first_k_dense_replace:
            return LlamaMLP(config, context, prefix=f"{prefix}.mlp", then=then)
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
            then=then,
        )


class Glm4MoeForCausalLM(LlamaForCausalLM):
    config_class = Glm4MoeConfig
    decoder_layer = Glm4MoeDecoderLayer

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        self.ignored_prefixes = prediction_layer_prefixes(config)
