"""Nemotron and Minitron: Parmar et al. 2024, https://arxiv.org/abs/2402.16819; Sreenivas et al. 2024, 2408.11796.

Squared ReLU without a gate, layer norms that store their weight less one, a part of each head rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from atom_models.architectures.llama import LlamaAttention, LlamaConfig, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, LayerNorm, Residual, Rotary, UngatedMLP


@dataclass(frozen=True)
class NemotronConfig(LlamaConfig):
    """Fields of `config.json`, under their Hugging Face names. Half of each head rotates by default."""

    hidden_act: str = "relu2"
    rms_norm_eps: float = field(default=1e-5, metadata={"also": ("norm_eps",)})

    @property
    def rope(self) -> Mapping[str, Any]:
        return {"partial_rotary_factor": 0.5, **self.rope_parameters}


class NemotronNorm(LayerNorm):
    """A layer norm whose weight is stored less one."""

    def __init__(self, config: NemotronConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps, context, prefix=prefix, weight_offset=1.0)


class NemotronDecoderLayer(Layer):
    def __init__(
        self, config: NemotronConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        self.input_layernorm = NemotronNorm(config, context, prefix=f"{prefix}.input_layernorm")
        self.self_attn = LlamaAttention(config, context, layer_id=layer_id, prefix=f"{prefix}.self_attn", rotary=rotary)
        self.post_attention_layernorm = NemotronNorm(config, context, prefix=f"{prefix}.post_attention_layernorm")
        self.mlp = UngatedMLP(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            context=context,
            prefix=f"{prefix}.mlp",
            bias=config.mlp_bias,
        )

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        residual = residual.plus(self.self_attn(positions, self.input_layernorm(residual)))
        return residual.plus(self.mlp(self.post_attention_layernorm(residual)))


class NemotronForCausalLM(LlamaForCausalLM):
    config_class = NemotronConfig
    decoder_layer = NemotronDecoderLayer

    def make_norm(self, config: NemotronConfig, context: BuildContext, *, prefix: str) -> NemotronNorm:
        return NemotronNorm(config, context, prefix=prefix)
