"""GPT-OSS: OpenAI 2025, https://arxiv.org/abs/2508.10925.

Layers take turns in seeing a window and everything; each head has a sink, a logit that takes part in the softmax and
has no value; experts have biases, and a swiglu whose inputs are clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from atom_models.architectures.llama import LlamaConfig, LlamaForCausalLM
from atom_models.checkpoint.layer_types import FULL, SLIDING, check_layer_types
from atom_models.layers import MoEConfig, RoutingConfig


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(LlamaConfig):
    """Fields of `config.json`; `intermediate_size` is that of one expert."""

    # The same as the rotation's original_max_position_embeddings.
    unread: ClassVar[tuple[str, ...]] = ("initial_context_length",)
    has_sinks: ClassVar[bool] = True

    num_local_experts: int
    num_experts_per_tok: int = field(default=4, metadata={"also": ("experts_per_token",)})
    sliding_window: int = 128
    layer_types: Sequence[str] | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    attention_bias: bool = True
    rms_norm_eps: float = 1e-5

    def window_of(self, layer_id: int) -> int | None:
        types = self.layer_types or [(SLIDING, FULL)[index % 2] for index in range(self.num_hidden_layers)]
        return self.sliding_window if check_layer_types(types, self.num_hidden_layers)[layer_id] == SLIDING else None

    def experts_of(self, layer_id: int) -> MoEConfig:
        return MoEConfig(
            num_experts=self.num_local_experts,
            top_k=self.num_experts_per_tok,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            # The published model takes the softmax of the chosen logits: the same as renormalizing that of all.
            routing=RoutingConfig(renormalize=True, linear="router", linear_bias=True),
            hidden_act="swiglu_oai",
            swiglu_alpha=self.swiglu_alpha,
            swiglu_limit=self.swiglu_limit,
            expert_bias=True,
            fused_transposed=True,
            fused_in_turns=True,
        )


class GptOssForCausalLM(LlamaForCausalLM):
    config_class = GptOssConfig
