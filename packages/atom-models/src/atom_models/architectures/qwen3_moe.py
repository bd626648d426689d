"""Qwen3-MoE: Yang et al. 2025, https://arxiv.org/abs/2505.09388. Qwen3 with experts in all layers, or in some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atom_models.architectures.llama import LlamaForCausalLM, LlamaMLP
from atom_models.architectures.qwen3 import Qwen3Config, Qwen3DecoderLayer
from atom_models.build_context import BuildContext
from atom_models.layers import MoE, RoutingConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(Qwen3Config):
    """Fields of `config.json`; `intermediate_size` is that of layers without experts."""

    # Written as num_local_experts by recent releases of transformers.
    num_experts: int = field(metadata={"also": ("num_local_experts",)})
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: Sequence[int] = ()
    head_dim: int | None = None

    def has_experts(self, layer_id: int) -> bool:
        return layer_id not in self.mlp_only_layers and (layer_id + 1) % self.decoder_sparse_step == 0

    def window_of(self, layer_id: int) -> int | None:
        """Unlike in Qwen3, all layers have the window or none."""
        return self.sliding_window if self.use_sliding_window else None


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    def make_mlp(self, config: Qwen3MoeConfig, context: BuildContext, *, layer_id: int, prefix: str) -> MoE | LlamaMLP:
        if not config.has_experts(layer_id):
            return LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        return MoE(
            context,
            f"{prefix}.mlp",
            num_experts=config.num_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            hidden_act=config.hidden_act,
            routing=RoutingConfig(renormalize=config.norm_topk_prob),
        )


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    config_class = Qwen3MoeConfig
    decoder_layer = Qwen3MoeDecoderLayer
