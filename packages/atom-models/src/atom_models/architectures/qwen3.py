"""Qwen3: Yang et al. 2025, https://arxiv.org/abs/2505.09388. Qwen2 with QK norms in place of biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from atom_models.architectures.qwen2 import Qwen2Config
from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """Fields of `config.json`; heads are 128 wide whatever the hidden size."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"use_qk_norm": (True,)}

    head_dim: int | None = 128


class Qwen3DecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: Qwen3Config, context: BuildContext, *, layer_id: int, **rest: Any
    ) -> LlamaAttention:
        return LlamaAttention(config, context, head_norms=True, sliding_window=config.window_of(layer_id), **rest)


class Qwen3ForCausalLM(LlamaForCausalLM):
    config_class = Qwen3Config
    decoder_layer = Qwen3DecoderLayer
