"""DeepSeek-V2 and V2-Lite: DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434.

Latent attention, and many small experts beside some that see every token; the first layers are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from atom_kernels.attention.mla import MlaProblem
from atom_models.architectures.fine_grained_moe import FineGrainedMoEConfig
from atom_models.architectures.llama import LlamaDecoderLayer, LlamaForCausalLM
from atom_models.build_context import BuildContext
from atom_models.layers import (
    ColumnParallelLinear,
    Layer,
    Linear,
    Normed,
    RMSNorm,
    Rotary,
    RoutingConfig,
    RowParallelLinear,
    Shard,
    Term,
    make_latent_attention,
    mla_scale,
)


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
    def latent_norm_eps(self) -> float:
        """The epsilon of the norms of latents: engines that serve these models use that of all other norms."""
        return self.rms_norm_eps

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


def mla_problem(config: DeepseekV2Config, context: BuildContext, *, prefix: str) -> MlaProblem:
    """This rank's latent attention, of the layer's block `prefix`."""
    return MlaProblem(
        num_heads=context.split(config.num_attention_heads, f"{prefix}: num_attention_heads"),
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        scale=mla_scale(config.qk_nope_head_dim + config.qk_rope_head_dim, config.rope_parameters),
        dtype=context.dtype_name,
        cache=context.cache_format,
        block_size=context.block_size,
    )


class DeepseekV2Attention(Layer):
    """Ranks share the heads; latents are every rank's own. Queries have a latent where `q_lora_rank` is given."""

    def __init__(
        self, config: DeepseekV2Config, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary | None
    ) -> None:
        super().__init__()
        hidden_size, num_heads, q_rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank
        if config.attention_bias and q_rank is None:
            raise ValueError(f"{prefix}: attention_bias needs q_lora_rank: no published model is without")
        problem = mla_problem(config, context, prefix=prefix)
        query_dim, latent_dim = problem.query_dim, problem.latent_dim
        if q_rank is None:
            query = Shard("q_proj", num_heads * query_dim, context.collectives.size)
        else:
            query = Shard("q_a_proj", q_rank)
        # What input_layernorm feeds: queries or their latents, and the latents of keys and values.
        self.qkv_proj = Linear(
            hidden_size,
            (query, Shard("kv_a_proj_with_mqa", latent_dim)),
            context,
            prefix=f"{prefix}.qkv_a_proj",
            bias=config.attention_bias,
        )
        self._sizes = [self.qkv_proj.out_features - latent_dim, latent_dim]
        self.q_a_layernorm = self.q_b_proj = None
        if q_rank is not None:
            self.q_b_proj = ColumnParallelLinear(q_rank, num_heads * query_dim, context, prefix=f"{prefix}.q_b_proj")
            eps = config.latent_norm_eps
            self.q_a_layernorm = RMSNorm(q_rank, eps, context, prefix=f"{prefix}.q_a_layernorm", feeds=self.q_b_proj)
        self.attn = make_latent_attention(
            problem,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=None if rotary is None else replace(rotary, interleaved=config.rope_interleave),
            norm=RMSNorm(config.kv_lora_rank, config.latent_norm_eps, context, prefix=f"{prefix}.kv_a_layernorm"),
        )
        self.o_proj = RowParallelLinear(
            num_heads * config.v_head_dim, hidden_size, context, prefix=f"{prefix}.o_proj", bias=config.attention_bias
        )

    def forward(self, positions: torch.Tensor, hidden_states: Normed) -> Term:
        q, kv = self.qkv_proj(hidden_states).split(self._sizes, dim=-1)
        if self.q_b_proj is not None and self.q_a_layernorm is not None:
            q = self.q_b_proj(self.q_a_layernorm(q))
        return self.o_proj(self.attn(q, kv, positions))


class DeepseekV2DecoderLayer(LlamaDecoderLayer):
    def make_attention(self, config: DeepseekV2Config, context: BuildContext, **rest: Any) -> DeepseekV2Attention:
        return DeepseekV2Attention(config, context, **rest)


class DeepseekV2ForCausalLM(LlamaForCausalLM):
    config_class = DeepseekV2Config
    decoder_layer = DeepseekV2DecoderLayer
