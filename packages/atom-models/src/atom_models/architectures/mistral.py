"""Mistral: Jiang et al. 2023, https://arxiv.org/abs/2310.06825. Llama with a sliding window in every layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atom_models.architectures.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """Fields of `config.json`. The first release has a window and no `sliding_window`; null in later ones is none."""

    sliding_window: int | None = field(default=4096, metadata={"null": None})


class MistralDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: MistralConfig, context: BuildContext, *, layer_id: int, **rest: Any
    ) -> LlamaAttention:
        return LlamaAttention(config, context, sliding_window=config.sliding_window, **rest)


class MistralForCausalLM(LlamaForCausalLM):
    config_class = MistralConfig
    decoder_layer = MistralDecoderLayer
