"""DeepSeek-V2 and V2-Lite: DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434.

Latent attention, and many small experts beside some that see every token; the first layers are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from atom_models.architectures.fine_grained_moe import FineGrainedMoEConfig
from atom_models.architectures.llama import LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import MLAAttention, Rotary, RoutingConfig, mla_scale


@dataclass(frozen=True, kw_only=True)
class DeepseekV2Config(FineGrainedMoEConfig):
    """Fields of `config.json`; `intermediate_size` is that of layers without experts."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"scoring_func": ("softmax",)}
    unread: ClassVar[tuple[str, ...]] = ("qk_head_dim",)

    q_lora_rank: int | None = None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    topk_method: str = "greedy"
    norm_topk_prob: bool = False
    rope_interleave: bool = True

    @property
    def head_size(self) -> int:
        """The size that the table of angles is for: the rotated part of a head."""
        return self.qk_rope_head_dim

    @property
    def routing(self) -> RoutingConfig:
        if self.topk_method not in ("greedy", "group_limited_greedy"):
            raise ValueError(f"topk_method is {self.topk_method!r}, not greedy or group_limited_greedy")
        grouped = self.topk_method == "group_limited_greedy"
        return RoutingConfig(
            renormalize=self.norm_topk_prob,
            num_groups=self.n_group if grouped else 1,
            top_groups=self.topk_group if grouped else 1,
            # Weights that sum to one are not scaled in this generation.
            scaling_factor=1.0 if self.norm_topk_prob else self.routed_scaling_factor,
            float32=True,
        )


class DeepseekV2DecoderLayer(LlamaDecoderLayer):
    def make_attention(
        self, config: DeepseekV2Config, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> MLAAttention:
        return MLAAttention(
            context,
            prefix=prefix,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            q_lora_rank=config.q_lora_rank,
            kv_lora_rank=config.kv_lora_rank,
            qk_nope_head_dim=config.qk_nope_head_dim,
            qk_rope_head_dim=config.qk_rope_head_dim,
            v_head_dim=config.v_head_dim,
            scale=mla_scale(config.qk_nope_head_dim + config.qk_rope_head_dim, config.rope_parameters),
            rotary=replace(rotary, interleaved=config.rope_interleave),
            bias=config.attention_bias,
        )


class DeepseekV2ForCausalLM(LlamaForCausalLM):
    config_class = DeepseekV2Config
    decoder_layer = DeepseekV2DecoderLayer
