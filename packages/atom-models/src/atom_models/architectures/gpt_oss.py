"""GPT-OSS: OpenAI 2025, https://arxiv.org/abs/2508.10925.

Layers take turns in seeing a window and everything; each head has a sink, a logit that takes part in the softmax and
has no value; experts have biases, and a swiglu whose inputs are clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atom_models.architectures.layer_types import FULL, SLIDING, check_layer_types
from atom_models.architectures.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import (
    Attention,
    Layer,
    MoE,
    QKVParallelLinear,
    RMSNorm,
    Rotary,
    RoutingConfig,
    RowParallelLinear,
)


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(LlamaConfig):
    """Fields of `config.json`; `intermediate_size` is that of one expert."""

    num_local_experts: int
    num_experts_per_tok: int = 4
    sliding_window: int = 128
    layer_types: Sequence[str] | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    attention_bias: bool = True
    rms_norm_eps: float = 1e-5

    def window_of(self, layer_id: int) -> int | None:
        """Tokens that a query of this layer sees, itself included; None is all."""
        types = self.layer_types or [(SLIDING, FULL)[index % 2] for index in range(self.num_hidden_layers)]
        return self.sliding_window if check_layer_types(types, self.num_hidden_layers)[layer_id] == SLIDING else None


class GptOssAttention(Layer):
    def __init__(
        self,
        config: GptOssConfig,
        context: BuildContext,
        *,
        prefix: str,
        rotary: Rotary,
        then: RMSNorm,
        sliding_window: int | None,
    ) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=config.head_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.attention_bias,
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.qkv_proj.num_kv_heads,
            config.head_size,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            sliding_window=sliding_window,
            sinks=True,
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_size,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.attention_bias,
            then=then,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Any, residual: torch.Tensor) -> Any:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v, positions), residual)


class GptOssDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: GptOssConfig, context: BuildContext, *, layer_id: int, **seams: Any
    ) -> GptOssAttention:
        return GptOssAttention(config, context, sliding_window=config.window_of(layer_id), **seams)

    def make_mlp(
        self, config: GptOssConfig, context: BuildContext, *, layer_id: int, prefix: str, then: RMSNorm
    ) -> MoE:
        return MoE(
            context,
            f"{prefix}.mlp",
            num_experts=config.num_local_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            # The published model takes the softmax of the chosen logits: the same as renormalizing that of all.
            routing=RoutingConfig(renormalize=True, linear="router", linear_bias=True),
            hidden_act="swiglu_oai",
            swiglu_alpha=config.swiglu_alpha,
            swiglu_limit=config.swiglu_limit,
            expert_bias=True,
            fused_transposed=True,
            then=then,
        )


class GptOssForCausalLM(LlamaForCausalLM):
    config_class = GptOssConfig
    decoder_layer = GptOssDecoderLayer
