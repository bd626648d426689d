"""Qwen3-MoE: Yang et al. 2025, https://arxiv.org/abs/2505.09388. Qwen3 with experts in all layers, or in some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atom_models.architectures.llama import LlamaForCausalLM
from atom_models.architectures.qwen3 import Qwen3Config
from atom_models.layers import MoEConfig, RoutingConfig


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

    def experts_of(self, layer_id: int) -> MoEConfig | None:
        if layer_id in self.mlp_only_layers or (layer_id + 1) % self.decoder_sparse_step:
            return None
        return MoEConfig(
            num_experts=self.num_experts,
            top_k=self.num_experts_per_tok,
            hidden_size=self.hidden_size,
            intermediate_size=self.moe_intermediate_size,
            hidden_act=self.activation,
            routing=RoutingConfig(renormalize=self.norm_topk_prob),
        )

    def window_of(self, layer_id: int) -> int | None:
        """Unlike in Qwen3, all layers have the window or none."""
        return self.sliding_window if self.use_sliding_window else None


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    config_class = Qwen3MoeConfig
