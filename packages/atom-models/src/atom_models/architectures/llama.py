"""Llama: Touvron et al. 2023, https://arxiv.org/abs/2302.13971 and 2307.09288; Llama 3, https://arxiv.org/abs/2407.21783."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from atom_models.build_context import BuildContext
from atom_models.decoder.causal_lm import Decoder, DecoderForCausalLM
from atom_models.layers import (
    Attention,
    GatedActivation,
    Layer,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    Residual,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    make_rotary,
)


@dataclass(frozen=True)
class LlamaConfig:
    """Fields of `config.json`, under their Hugging Face names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 2048
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class LlamaAttention(Layer):
    """Relatives state what they do otherwise: biases in other places, head norms, a sliding window, sinks."""

    def __init__(
        self,
        config: LlamaConfig,
        context: BuildContext,
        *,
        prefix: str,
        rotary: Rotary | None,
        qkv_bias: bool | None = None,
        output_bias: bool | None = None,
        head_norms: bool = False,
        sliding_window: int | None = None,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=config.head_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.kv_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.attention_bias if qkv_bias is None else qkv_bias,
        )
        q_norm = k_norm = None
        if head_norms:
            q_norm = RMSNorm(config.head_size, config.rms_norm_eps, context, prefix=f"{prefix}.q_norm")
            k_norm = RMSNorm(config.head_size, config.rms_norm_eps, context, prefix=f"{prefix}.k_norm")
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.qkv_proj.num_kv_heads,
            config.head_size,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            q_norm=q_norm,
            k_norm=k_norm,
            sliding_window=sliding_window,
            sinks=sinks,
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_size,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.attention_bias if output_bias is None else output_bias,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v, positions))


class LlamaMLP(Layer):
    def __init__(self, config: LlamaConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            {"gate_proj": size, "up_proj": size},
            context,
            prefix=f"{prefix}.gate_up_proj",
            bias=config.mlp_bias,
        )
        self.input_format = self.gate_up_proj.input_format
        self.act = GatedActivation(
            config.hidden_act, self.gate_up_proj.out_features // 2, context, after=self.gate_up_proj
        )
        self.down_proj = RowParallelLinear(
            size, config.hidden_size, context, prefix=f"{prefix}.down_proj", bias=config.mlp_bias
        )

    def forward(self, hidden_states: Any) -> Any:
        return self.down_proj(self.act(self.gate_up_proj(hidden_states)))


class LlamaDecoderLayer(Layer):
    def __init__(
        self, config: LlamaConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = self.make_attention(
            config, context, layer_id=layer_id, prefix=f"{prefix}.self_attn", rotary=rotary
        )
        self.mlp = self.make_mlp(config, context, layer_id=layer_id, prefix=prefix)
        self.input_layernorm = RMSNorm(
            size, eps, context, prefix=f"{prefix}.input_layernorm", feeds=self.self_attn.qkv_proj
        )
        self.post_attention_layernorm = RMSNorm(
            size, eps, context, prefix=f"{prefix}.post_attention_layernorm", feeds=self.mlp
        )

    def make_attention(self, config: Any, context: BuildContext, *, layer_id: int, **rest: Any) -> Any:
        """The attention of layer `layer_id`; relatives make theirs."""
        return LlamaAttention(config, context, **rest)

    def make_mlp(self, config: Any, context: BuildContext, *, layer_id: int, prefix: str) -> Any:
        """What follows attention in layer `layer_id`, whose name is `prefix`; relatives make theirs."""
        return LlamaMLP(config, context, prefix=f"{prefix}.mlp")

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        residual = residual.plus(self.self_attn(positions, self.input_layernorm(residual)))
        return residual.plus(self.mlp(self.post_attention_layernorm(residual)))


class LlamaForCausalLM(DecoderForCausalLM):
    """Relatives name their config and their decoder layer."""

    config_class: type[LlamaConfig] = LlamaConfig
    decoder_layer: Callable[..., LlamaDecoderLayer] = LlamaDecoderLayer

    def make_model(self, config: LlamaConfig, context: BuildContext) -> Decoder:
        rotary = make_rotary(config.rope_parameters, config.head_size, config.max_position_embeddings, context=context)
        make_layer = type(self).decoder_layer
        layers = [
            make_layer(config, context, layer_id=layer_id, prefix=f"model.layers.{layer_id}", rotary=rotary)
            for layer_id in range(config.num_hidden_layers)
        ]
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps, context, prefix="model.norm")
        return Decoder(config, context, layers=layers, norm=norm)
