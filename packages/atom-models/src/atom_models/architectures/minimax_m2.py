"""MiniMax-M2: MiniMax 2025, https://github.com/MiniMax-AI/MiniMax-M2.

Many small experts chosen by biased sigmoids; queries and keys normed over all heads together; half of a head rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atom_models.architectures.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.config.prediction_layers import prediction_layer_prefixes
from atom_models.layers import (
    Attention,
    Layer,
    MoE,
    QKVParallelLinear,
    Rotary,
    RoutingConfig,
    RowParallelLinear,
    WideRMSNorm,
)


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


class MiniMaxM2Attention(Layer):
    def __init__(self, config: MiniMaxM2Config, context: BuildContext, *, prefix: str, rotary: Rotary) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_attention_heads, config.kv_heads, config.head_size
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=head_dim,
            num_heads=heads,
            num_kv_heads=kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.attention_bias,
        )
        self.q_norm = WideRMSNorm(heads * head_dim, config.rms_norm_eps, context, prefix=f"{prefix}.q_norm")
        self.k_norm = WideRMSNorm(
            kv_heads * head_dim, config.rms_norm_eps, context, prefix=f"{prefix}.k_norm", num_pieces=kv_heads
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.qkv_proj.num_kv_heads,
            head_dim,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
        )
        self.o_proj = RowParallelLinear(heads * head_dim, config.hidden_size, context, prefix=f"{prefix}.o_proj")

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(self.q_norm(q), self.k_norm(k), v, positions))


class MiniMaxM2DecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: MiniMaxM2Config, context: BuildContext, *, layer_id: int, **rest: Any
    ) -> MiniMaxM2Attention:
        return MiniMaxM2Attention(config, context, **rest)

    def make_mlp(self, config: MiniMaxM2Config, context: BuildContext, *, layer_id: int, prefix: str) -> MoE:
        routing = RoutingConfig(
            scoring=config.scoring_func,
            renormalize=True,
            correction_bias="e_score_correction_bias" if config.use_routing_bias else None,
            float32=True,
        )
        return MoE(
            context,
            f"{prefix}.block_sparse_moe",
            num_experts=config.num_local_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            routing=routing,
        )


class MiniMaxM2ForCausalLM(LlamaForCausalLM):
    config_class = MiniMaxM2Config
    decoder_layer = MiniMaxM2DecoderLayer

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        self.ignored_prefixes = prediction_layer_prefixes(config)
