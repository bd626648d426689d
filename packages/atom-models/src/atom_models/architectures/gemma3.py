"""Gemma 3, the language model: Gemma Team 2025, https://arxiv.org/abs/2503.19786."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from atom_models.build_context import BuildContext
from atom_models.checkpoint.layer_types import FULL, SLIDING, check_layer_types
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

# Bases of the rotation in global and in local layers, where the config names none.
GLOBAL_ROPE_THETA, LOCAL_ROPE_THETA = 1_000_000.0, 10_000.0


@dataclass(frozen=True)
class Gemma3Config:
    """Fields of `config.json`, under their Hugging Face names. Absent ones are those of the published 4B model."""

    # The earlier name of `hidden_activation`.
    unread: ClassVar[tuple[str, ...]] = ("hidden_act",)

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    vocab_size: int = 262_208
    head_dim: int = 256
    max_position_embeddings: int = 131_072
    hidden_activation: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256
    sliding_window: int = 4096
    sliding_window_pattern: int = field(default=6, metadata={"also": ("_sliding_window_pattern",)})
    layer_types: Sequence[str] | None = None
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)
    rope_local_base_freq: float = LOCAL_ROPE_THETA
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False

    def __post_init__(self) -> None:
        if self.use_bidirectional_attention:
            raise ValueError("use_bidirectional_attention is true: embedding models of this family are not supported")

    @property
    def types(self) -> tuple[str, ...]:
        """The type of each layer: `layer_types`, or else five local ones and then a global one, in turn."""
        if self.layer_types is not None:
            return check_layer_types(self.layer_types, self.num_hidden_layers)
        pattern = self.sliding_window_pattern
        return tuple(FULL if (layer_id + 1) % pattern == 0 else SLIDING for layer_id in range(self.num_hidden_layers))

    def rope_of(self, layer_type: str) -> Mapping[str, Any]:
        """Rotary parameters of a layer type; older configs have those of global layers and a base for local ones."""
        given = self.rope_parameters
        if FULL in given or SLIDING in given:
            theta = GLOBAL_ROPE_THETA if layer_type == FULL else self.rope_local_base_freq
            return {"rope_theta": theta, **(given.get(layer_type) or {})}
        if layer_type == FULL:
            return {"rope_theta": GLOBAL_ROPE_THETA, **given}
        return {"rope_theta": self.rope_local_base_freq}


class Gemma3Norm(RMSNorm):
    """An RMS norm whose weight is stored less one."""

    def __init__(self, size: int, config: Gemma3Config, context: BuildContext, *, prefix: str, feeds: Any = None):
        super().__init__(size, config.rms_norm_eps, context, prefix=prefix, feeds=feeds, weight_offset=1.0)


class Gemma3Attention(Layer):
    def __init__(
        self, config: Gemma3Config, context: BuildContext, *, prefix: str, rotary: Rotary, sliding_window: int | None
    ) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            head_dim=config.head_dim,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            context=context,
            prefix=f"{prefix}.qkv_proj",
            bias=config.attention_bias,
        )
        self.attn = Attention(
            self.qkv_proj.num_heads,
            self.qkv_proj.num_kv_heads,
            config.head_dim,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=rotary,
            q_norm=Gemma3Norm(config.head_dim, config, context, prefix=f"{prefix}.q_norm"),
            k_norm=Gemma3Norm(config.head_dim, config, context, prefix=f"{prefix}.k_norm"),
            scale=config.query_pre_attn_scalar**-0.5,
            sliding_window=sliding_window,
            soft_cap=config.attn_logit_softcapping,
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            context,
            prefix=f"{prefix}.o_proj",
            bias=config.attention_bias,
        )

    def forward(self, positions: torch.Tensor, hidden_states: Any) -> Any:
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_proj.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v, positions))


class Gemma3MLP(Layer):
    def __init__(self, config: Gemma3Config, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, {"gate_proj": size, "up_proj": size}, context, prefix=f"{prefix}.gate_up_proj"
        )
        self.act = GatedActivation(config.hidden_activation, self.gate_up_proj.out_features // 2, context)
        self.down_proj = RowParallelLinear(size, config.hidden_size, context, prefix=f"{prefix}.down_proj")

    def forward(self, hidden_states: Any) -> Any:
        return self.down_proj(self.act(self.gate_up_proj(hidden_states)))


class Gemma3DecoderLayer(Layer):
    """Norms before and after both halves; what a half adds to the residual is normed."""

    def __init__(
        self, config: Gemma3Config, context: BuildContext, *, prefix: str, rotary: Rotary, sliding_window: int | None
    ) -> None:
        super().__init__()

        def norm(name: str, feeds: Any = None) -> Gemma3Norm:
            return Gemma3Norm(config.hidden_size, config, context, prefix=f"{prefix}.{name}", feeds=feeds)

        self.self_attn = Gemma3Attention(
            config, context, prefix=f"{prefix}.self_attn", rotary=rotary, sliding_window=sliding_window
        )
        self.mlp = Gemma3MLP(config, context, prefix=f"{prefix}.mlp")
        self.input_layernorm = norm("input_layernorm", feeds=self.self_attn.qkv_proj)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm", feeds=self.mlp.gate_up_proj)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        hidden_states = self.self_attn(positions, self.input_layernorm(residual))
        residual = residual.plus(self.post_attention_layernorm(hidden_states))
        hidden_states = self.mlp(self.pre_feedforward_layernorm(residual))
        return residual.plus(self.post_feedforward_layernorm(hidden_states))


class Gemma3ForCausalLM(DecoderForCausalLM):
    config_class = Gemma3Config

    def make_model(self, config: Gemma3Config, context: BuildContext) -> Decoder:
        rotaries = {
            layer_type: make_rotary(
                config.rope_of(layer_type), config.head_dim, config.max_position_embeddings, context=context
            )
            for layer_type in set(config.types)
        }
        layers = [
            Gemma3DecoderLayer(
                config,
                context,
                prefix=f"model.layers.{layer_id}",
                rotary=rotaries[layer_type],
                sliding_window=config.sliding_window if layer_type == SLIDING else None,
            )
            for layer_id, layer_type in enumerate(config.types)
        ]
        norm = Gemma3Norm(config.hidden_size, config, context, prefix="model.norm")
        # Rounded to the model's dtype, as in training.
        embed_scale = torch.tensor(config.hidden_size**0.5, dtype=context.dtype).item()
        return Decoder(config, context, layers=layers, norm=norm, embed_scale=embed_scale)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits, cap = super().compute_logits(hidden_states), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)
