"""Gemma 3, alone and seeing by the tower of SigLIP: Gemma Team 2025, https://arxiv.org/abs/2503.19786."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from atom_models.architectures.llama import LlamaAttention, LlamaConfig, LlamaMLP, llama_norm
from atom_models.build_context import BuildContext
from atom_models.checkpoint.layer_types import FULL, SLIDING, check_layer_types
from atom_models.decoder.causal_lm import Decoder, DecoderForCausalLM
from atom_models.layers import Layer, Residual, RMSNorm, Rotary, make_rotary
from atom_models.vision.sees import Sees
from atom_models.vision.towers.gemma3 import PROJECTOR, Gemma3Tower

# Bases of the rotation in global and in local layers, where the config names none.
GLOBAL_ROPE_THETA, LOCAL_ROPE_THETA = 1_000_000.0, 10_000.0


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(LlamaConfig):
    """Fields of `config.json`, under their Hugging Face names. Absent ones are those of the published 4B model."""

    norm_offset: ClassVar[float] = 1.0

    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    vocab_size: int = 262_208
    head_dim: int | None = 256
    max_position_embeddings: int = 131_072
    # Its earlier name, `hidden_act`, is not followed.
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256
    sliding_window: int = 4096
    sliding_window_pattern: int = field(default=6, metadata={"also": ("_sliding_window_pattern",)})
    layer_types: Sequence[str] | None = None
    rope_local_base_freq: float = LOCAL_ROPE_THETA
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False

    def __post_init__(self) -> None:
        if self.use_bidirectional_attention:
            raise ValueError("use_bidirectional_attention is true: embedding models of this family are not supported")

    @property
    def has_head_norms(self) -> bool:
        return True

    @property
    def attention_scale(self) -> float:
        return self.query_pre_attn_scalar**-0.5

    @property
    def soft_cap(self) -> float | None:
        return self.attn_logit_softcapping

    @property
    def activation(self) -> str:
        return self.hidden_activation

    def window_of(self, layer_id: int) -> int | None:
        return self.sliding_window if self.types[layer_id] == SLIDING else None

    @cached_property
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


class Gemma3DecoderLayer(Layer):
    """Norms before and after both halves; what a half adds to the residual is normed."""

    def __init__(
        self, config: Gemma3Config, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()

        def norm(name: str, feeds: Any = None) -> RMSNorm:
            return llama_norm(config, context, prefix=f"{prefix}.{name}", feeds=feeds)

        self.self_attn = LlamaAttention(config, context, layer_id=layer_id, prefix=f"{prefix}.self_attn", rotary=rotary)
        self.mlp = LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        self.input_layernorm = norm("input_layernorm", feeds=self.self_attn.qkv_proj)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm", feeds=self.mlp)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        hidden_states = self.self_attn(positions, self.input_layernorm(residual))
        residual = residual.plus(self.post_attention_layernorm(hidden_states))
        hidden_states = self.mlp(self.pre_feedforward_layernorm(residual))
        return residual.plus(self.post_feedforward_layernorm(hidden_states))


class Gemma3ForCausalLM(DecoderForCausalLM):
    config_class = Gemma3Config
    decoder: type[Decoder] = Decoder

    def make_model(self, config: Gemma3Config, context: BuildContext) -> Decoder:
        prefix = self.decoder_prefix
        rotaries = {
            layer_type: make_rotary(
                config.rope_of(layer_type), config.head_size, config.max_position_embeddings, context=context
            )
            for layer_type in set(config.types)
        }
        layers_of_stage = [(layer_id, config.types[layer_id]) for layer_id in context.stage.layers(len(config.types))]
        layers = [
            Gemma3DecoderLayer(
                config, context, layer_id=layer_id, prefix=f"{prefix}.layers.{layer_id}", rotary=rotaries[layer_type]
            )
            for layer_id, layer_type in layers_of_stage
        ]
        norm = llama_norm(config, context, prefix=f"{prefix}.norm")
        # Rounded to the model's dtype, as in training.
        embed_scale = torch.tensor(config.hidden_size**0.5, dtype=context.dtype).item()
        return self.decoder(config, context, layers=layers, norm=norm, prefix=prefix, embed_scale=embed_scale)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits, cap = super().compute_logits(hidden_states), self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


class Gemma3ForConditionalGeneration(Sees, Gemma3ForCausalLM):
    """Weights go by the names of the published checkpoints."""

    tower = Gemma3Tower
    decoder_prefix = "language_model.model"
    head_prefix = "language_model.lm_head"
    vision_prefixes = ("vision_tower", PROJECTOR)
