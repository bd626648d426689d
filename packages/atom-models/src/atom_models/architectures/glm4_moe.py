"""GLM-4.5 and its successors: GLM-4.5 team 2025, https://arxiv.org/abs/2508.06471.

A deep and narrow mixture of experts: the first layers dense, a shared expert in all others, routing as in DeepSeek-V3,
half of each head rotated, biases in q, k and v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atom_models.architectures.fine_grained_moe import (
    FineGrainedMoEConfig,
    FineGrainedMoEDecoderLayer,
    FineGrainedMoEForCausalLM,
)
from atom_models.architectures.llama import LlamaAttention
from atom_models.build_context import BuildContext


@dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig(FineGrainedMoEConfig):
    """Fields of `config.json`; `attention_bias` is that of q, k and v."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}

    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    use_qk_norm: bool = False


class Glm4MoeDecoderLayer(FineGrainedMoEDecoderLayer):
    def make_attention(
        self, config: Glm4MoeConfig, context: BuildContext, *, layer_id: int, **rest: Any
    ) -> LlamaAttention:
        return LlamaAttention(config, context, output_bias=False, head_norms=config.use_qk_norm, **rest)


class Glm4MoeForCausalLM(FineGrainedMoEForCausalLM):
    config_class = Glm4MoeConfig
    decoder_layer = Glm4MoeDecoderLayer
