"""DeepSeek-V3.2: DeepSeek-AI 2025, https://arxiv.org/abs/2512.02556.

DeepSeek-V3 with sparse attention: an index scores all earlier tokens by small keys of its own, and attention reads the
latents of the best ones alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from atom_kernels.attention.index import IndexProblem
from atom_kernels.attention.sparse import SparseMlaProblem
from atom_models.architectures.deepseek_v2 import mla_problem
from atom_models.architectures.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from atom_models.architectures.llama import LlamaDecoderLayer
from atom_models.build_context import BuildContext
from atom_models.decoder.causal_lm import Decoder
from atom_models.layers import (
    LatentAttention,
    Layer,
    LayerNorm,
    LightningIndex,
    Linear,
    Normed,
    Residual,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    Shard,
    Term,
)

# The norm of index keys has this one, whatever the config says of the other norms.
_INDEX_NORM_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class DeepseekV32Config(DeepseekV3Config):
    """Fields of `config.json`."""

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scoring_func": ("sigmoid",),
        "layer_types": ("indexed_attention",),
    }

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    indexer_rope_interleave: bool = False

    def has_index(self, layer_id: int) -> bool:
        """Whether layer `layer_id` chooses by itself; else it takes what the layer before it has."""
        return True


class DeepseekV32Index(Layer):
    """``forward(q, k, head_weights, positions) -> int32 [T, top_k]``, see `LightningIndex`.

    Its projections are parts of those of attention, which have the same inputs.
    """

    def __init__(self, config: DeepseekV32Config, context: BuildContext, *, prefix: str, rotary: Rotary) -> None:
        super().__init__()
        heads, size = config.index_n_heads, config.index_head_dim
        self.query = Shard("indexer.wq_b", heads * size)
        self.weights_and_key = (Shard("indexer.weights_proj", heads), Shard("indexer.wk", size))
        self.k_norm = LayerNorm(size, _INDEX_NORM_EPS, context, prefix=f"{prefix}.k_norm")
        problem = IndexProblem(
            num_heads=heads,
            head_dim=size,
            rotary_dim=config.qk_rope_head_dim,
            top_k=config.index_topk,
            scale=(heads * size) ** -0.5,
            dtype=context.dtype_name,
            block_size=context.block_size,
        )
        rotary = replace(rotary, interleaved=config.indexer_rope_interleave)
        self.choose = LightningIndex(problem, context=context, prefix=f"{prefix}.choose", rotary=rotary)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, head_weights: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        return self.choose(q, self.k_norm(k), head_weights, positions)


class DeepseekV32Attention(Layer):
    """``forward(positions, hidden_states, chosen) -> (output, chosen)``; `chosen` comes from the layer before.

    Ranks share the heads of attention; latents and the index are every rank's own.
    """

    def __init__(
        self, config: DeepseekV32Config, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        q_rank = config.q_lora_rank
        if q_rank is None or config.attention_bias:
            given = f"q_lora_rank {q_rank} and attention_bias {config.attention_bias}"
            raise ValueError(f"{prefix}: {given}: sparse attention needs a q_lora_rank, and has no biases")
        problem = SparseMlaProblem.of(mla_problem(config, context, prefix=prefix), config.index_topk)
        hidden_size, num_heads = config.hidden_size, config.num_attention_heads
        self.index = None
        if config.has_index(layer_id):
            self.index = DeepseekV32Index(config, context, prefix=f"{prefix}.indexer", rotary=rotary)
        latents = (Shard("q_a_proj", q_rank), Shard("kv_a_proj_with_mqa", problem.latent_dim))
        queries = (Shard("q_b_proj", num_heads * problem.query_dim, context.collectives.size),)
        if self.index is not None:
            # Latents end within a tile of 128 rows, so that nothing that is stored in tiles can follow them whole.
            latents, queries = (*self.index.weights_and_key, *latents), (*queries, self.index.query)
        self._latents, self._queries = ([shard.features_on_rank for shard in shards] for shards in (latents, queries))
        self.qkv_proj = Linear(hidden_size, latents, context, prefix=f"{prefix}.qkv_a_proj")
        self.q_b_proj = Linear(q_rank, queries, context, prefix=f"{prefix}.q_b_proj")
        eps = config.latent_norm_eps
        self.q_a_layernorm = RMSNorm(q_rank, eps, context, prefix=f"{prefix}.q_a_layernorm", feeds=self.q_b_proj)
        self.attn = LatentAttention(
            problem,
            context=context,
            prefix=f"{prefix}.attn",
            rotary=replace(rotary, interleaved=config.rope_interleave),
            norm=RMSNorm(config.kv_lora_rank, eps, context, prefix=f"{prefix}.kv_a_layernorm"),
        )
        self.o_proj = RowParallelLinear(num_heads * config.v_head_dim, hidden_size, context, prefix=f"{prefix}.o_proj")

    def forward(
        self, positions: torch.Tensor, hidden_states: Normed, chosen: torch.Tensor | None
    ) -> tuple[Term, torch.Tensor | None]:
        *index, q, kv = self.qkv_proj(hidden_states).split(self._latents, dim=-1)
        q, *index_q = self.q_b_proj(self.q_a_layernorm(q)).split(self._queries, dim=-1)
        if self.index is not None:
            head_weights, key = index
            chosen = self.index(*index_q, key, head_weights, positions)
        return self.o_proj(self.attn(q, kv, positions, chosen)), chosen


class DeepseekV32DecoderLayer(LlamaDecoderLayer):
    """``forward(positions, residual, chosen) -> (residual, chosen)``."""

    def make_attention(self, config: DeepseekV32Config, context: BuildContext, **rest: Any) -> DeepseekV32Attention:
        return DeepseekV32Attention(config, context, **rest)

    def forward(
        self, positions: torch.Tensor, residual: Residual, chosen: torch.Tensor | None
    ) -> tuple[Residual, torch.Tensor | None]:
        attended, chosen = self.self_attn(positions, self.input_layernorm(residual), chosen)
        residual = residual.plus(attended)
        return residual.plus(self.mlp(self.post_attention_layernorm(residual))), chosen

    def run_alone(self, positions: torch.Tensor, residual: Residual) -> Residual:
        return self(positions, residual, None)[0]


class DeepseekV32Decoder(Decoder):
    """Each layer hands on the positions that it attends to, though not to another stage."""

    def __init__(self, config: DeepseekV32Config, context: BuildContext, *, layers: Sequence[Any], **rest: Any) -> None:
        first = context.stage.layers(config.num_hidden_layers).start
        if layers and layers[0].self_attn.index is None:
            raise ValueError(
                f"layer {first} attends to what the layer before it chose, and a pipeline stage would begin there: "
                "give another pipeline_parallel_size"
            )
        super().__init__(config, context, layers=layers, **rest)

    def run_layers(self, positions: torch.Tensor, residual: Residual) -> tuple[Residual, list[Residual]]:
        chosen, aux = None, []
        for layer_id, layer in enumerate(self.layers):
            residual, chosen = layer(positions, residual, chosen)
            if layer_id in self.aux_layer_ids:
                aux.append(residual)
        return residual, aux


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    config_class = DeepseekV32Config
    decoder_layer = DeepseekV32DecoderLayer
    decoder = DeepseekV32Decoder
