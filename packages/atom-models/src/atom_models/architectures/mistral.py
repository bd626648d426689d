"""Mistral: Jiang et al. 2023, https://arxiv.org/abs/2310.06825. Llama with a sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.architectures.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """Fields of `config.json`; `sliding_window` is null in later releases, which see everything."""

    sliding_window: int | None = None


class MistralDecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: MistralConfig, context: BuildContext, *, layer_id: int, **seams: Any
    ) -> LlamaAttention:
        return LlamaAttention(config, context, sliding_window=config.sliding_window, **seams)


class MistralForCausalLM(LlamaForCausalLM):
    config_class = MistralConfig
    decoder_layer = MistralDecoderLayer

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        # Absent is not null: the first release had a window of 4096.
        super().__init__({"sliding_window": 4096, **config}, context)
