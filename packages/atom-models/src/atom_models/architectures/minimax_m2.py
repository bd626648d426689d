"""MiniMax-M2: MiniMax 2025, https://github.com/MiniMax-AI/MiniMax-M2.

Many small experts chosen by biased sigmoids; queries and keys normed over all heads together; half of a head rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atom_models.architectures.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import MoEConfig, Normed, RoutingConfig, Term, WideRMSNorm


@dataclass(frozen=True, kw_only=True)
class MiniMaxM2Config(LlamaConfig):
    """Fields of `config.json`; `intermediate_size` is that of one expert.

    The file also has fields of MiniMax's other models: linear attention, weights of residuals, a shared expert."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "shared_intermediate_size": (0,),
        **{f"layernorm_{part}_{factor}": (1,) for part in ("full_attention", "mlp") for factor in ("alpha", "beta")},
    }
    unread: ClassVar[tuple[str, ...]] = (
        *("layernorm_linear_attention_alpha", "layernorm_linear_attention_beta", "mlp_intermediate_size"),
        *("shared_moe_mode", "mtp_transformer_layers", "use_mtp"),
    )

    num_local_experts: int
    num_experts_per_tok: int
    scoring_func: str = "sigmoid"
    use_routing_bias: bool = True

    @property
    def needs_even_heads(self) -> bool:
        return True

    @property
    def output_bias(self) -> bool:
        return False

    def experts_of(self, layer_id: int) -> MoEConfig:
        routing = RoutingConfig(
            scoring=self.scoring_func,
            renormalize=True,
            correction_bias="e_score_correction_bias" if self.use_routing_bias else None,
            float32=True,
        )
        return MoEConfig(
            num_experts=self.num_local_experts,
            top_k=self.num_experts_per_tok,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            hidden_act=self.activation,
            routing=routing,
            name="block_sparse_moe",
        )


class MiniMaxM2Attention(LlamaAttention):
    def __init__(self, config: MiniMaxM2Config, context: BuildContext, *, prefix: str, **rest: Any) -> None:
        super().__init__(config, context, prefix=prefix, **rest)
        heads, kv_heads, head_dim = config.num_attention_heads, config.kv_heads, config.head_size
        self.q_norm = WideRMSNorm(heads * head_dim, config.rms_norm_eps, context, prefix=f"{prefix}.q_norm")
        self.k_norm = WideRMSNorm(
            kv_heads * head_dim, config.rms_norm_eps, context, prefix=f"{prefix}.k_norm", num_pieces=kv_heads
        )

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(self.q_norm(q), self.k_norm(k), v, positions))


class MiniMaxM2DecoderLayer(LlamaDecoderLayer):
    def make_attention(self, config: MiniMaxM2Config, context: BuildContext, **rest: Any) -> MiniMaxM2Attention:
        return MiniMaxM2Attention(config, context, **rest)


class MiniMaxM2ForCausalLM(LlamaForCausalLM):
    config_class = MiniMaxM2Config
    decoder_layer = MiniMaxM2DecoderLayer
