"""ModernBERT: Warner et al. 2024, https://arxiv.org/abs/2412.13663.

Norms before each half and no biases, gated MLPs, rotation; most layers see a window around each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.encoder import Encoder, EncoderConfig
from atom_models.layers import (
    EncoderAttention,
    GatedActivation,
    Layer,
    LayerNorm,
    Linear,
    ReplicatedLinear,
    Residual,
    Rotary,
    RowParallelLinear,
    Shard,
    Term,
    UngatedActivation,
    VocabularyEmbedding,
    make_rotary,
)

GLOBAL, LOCAL = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class ModernBertConfig(EncoderConfig):
    """Fields of `config.json`, under their Hugging Face names."""

    hidden_activation: str = "gelu"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: int = 128
    global_attn_every_n_layers: int = 3
    layer_types: Sequence[str] | None = None
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)
    classifier_bias: bool = False
    classifier_activation: str = "gelu"

    # Which hidden state is classified is the host's to know; the rest is of training and of other kernels.
    unread: ClassVar[tuple[str, ...]] = (
        *("classifier_pooling", "decoder_bias", "deterministic_flash_attn", "embedding_dropout", "mlp_dropout"),
        *("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type", "reference_compile"),
        *("repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction"),
    )
    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"position_embedding_type": ("absolute", "rope", "sans_pos")}

    def type_of(self, layer_id: int) -> str:
        """Whether a layer sees whole texts."""
        if self.layer_types is not None:
            return self.layer_types[layer_id]
        return LOCAL if layer_id % self.global_attn_every_n_layers else GLOBAL

    def window_of(self, layer_id: int) -> int | None:
        """How far a layer sees on each side."""
        return self.local_attention // 2 if self.type_of(layer_id) == LOCAL else None

    def rope_of(self, layer_type: str) -> Mapping[str, Any]:
        theta = self.global_rope_theta if layer_type == GLOBAL else self.local_rope_theta
        return {"rope_type": "default", "rope_theta": theta, **(self.rope_parameters.get(layer_type) or {})}


def modernbert_norm(config: ModernBertConfig, context: BuildContext, *, prefix: str) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, context, prefix=prefix, bias=config.norm_bias)


class ModernBertAttention(Layer):
    def __init__(
        self, config: ModernBertConfig, context: BuildContext, *, prefix: str, rotary: Rotary, window: int | None
    ) -> None:
        super().__init__()
        size, num_heads = config.hidden_size, context.split(config.num_attention_heads, "num_attention_heads")
        parts = [num_heads * config.head_size] * 3
        shards = (Shard.of_parts("Wqkv", parts, context.collectives),)
        bias = config.attention_bias
        self.qkv_proj = Linear(size, shards, context, prefix=f"{prefix}.Wqkv", bias=bias)
        self.attn = EncoderAttention(
            num_heads, config.head_size, context=context, prefix=f"{prefix}.attn", rotary=rotary, window=window
        )
        self.o_proj = RowParallelLinear(size, size, context, prefix=f"{prefix}.Wo", bias=bias)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> Term:
        q, k, v = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        return self.o_proj(self.attn(q, k, v, positions))


class ModernBertMLP(Layer):
    def __init__(self, config: ModernBertConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        size, bias = context.split(config.intermediate_size, "intermediate_size"), config.mlp_bias
        shards = (Shard.of_parts("Wi", [size, size], context.collectives),)
        self.gate_up_proj = Linear(config.hidden_size, shards, context, prefix=f"{prefix}.Wi", bias=bias)
        self.act = GatedActivation(config.hidden_activation, size, context, after=self.gate_up_proj)
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, context, prefix=f"{prefix}.Wo", bias=bias
        )

    def forward(self, hidden_states: torch.Tensor) -> Term:
        return self.down_proj(self.act(self.gate_up_proj(hidden_states)))


class ModernBertLayer(Layer):
    """The first layer reads embeddings, which are normed already."""

    def __init__(
        self, config: ModernBertConfig, context: BuildContext, *, layer_id: int, prefix: str, rotary: Rotary
    ) -> None:
        super().__init__()
        self.attn_norm = modernbert_norm(config, context, prefix=f"{prefix}.attn_norm") if layer_id else None
        self.attn = ModernBertAttention(
            config, context, prefix=f"{prefix}.attn", rotary=rotary, window=config.window_of(layer_id)
        )
        self.mlp_norm = modernbert_norm(config, context, prefix=f"{prefix}.mlp_norm")
        self.mlp = ModernBertMLP(config, context, prefix=f"{prefix}.mlp")

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        normed = residual.tensor() if self.attn_norm is None else self.attn_norm(residual)
        residual = residual.plus(self.attn(positions, normed))
        return residual.plus(self.mlp(self.mlp_norm(residual)))


class ModernBertModel(Encoder):
    config_class: ClassVar[type[ModernBertConfig]] = ModernBertConfig
    base_prefix = "model."

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        known, table = self.config, "embeddings.tok_embeddings"
        self.embed_tokens = VocabularyEmbedding(known.vocab_size, known.hidden_size, context, prefix=table)
        self.embed_norm = modernbert_norm(known, context, prefix="embeddings.norm")
        rotary = {
            layer_type: make_rotary(
                known.rope_of(layer_type), known.head_size, known.max_position_embeddings, context=context
            )
            for layer_type in (GLOBAL, LOCAL)
        }
        self.layers = nn.ModuleList(
            ModernBertLayer(
                known,
                context,
                layer_id=layer_id,
                prefix=f"layers.{layer_id}",
                rotary=rotary[known.type_of(layer_id)],
            )
            for layer_id in range(known.num_hidden_layers)
        )
        self.final_norm = modernbert_norm(known, context, prefix="final_norm")

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A pair of texts is told apart by what stands between them: `token_types` change nothing."""
        residual = Residual(self.embed_norm(self.embed_tokens(input_ids)))
        for layer in self.layers:
            residual = layer(positions, residual)
        return self.final_norm(residual)


class ModernBertForMaskedLM(ModernBertModel):
    """Saved with the head of its pre-training, which is passed over."""

    passed_over = ("head.", "decoder.")


class ModernBertHead(Layer):
    """A linear, an activation and a norm, and a linear that gives a score for each label."""

    def __init__(self, config: ModernBertConfig, context: BuildContext) -> None:
        super().__init__()
        size = config.hidden_size
        self.dense = ReplicatedLinear(
            size, size, context, prefix="head.dense", bias=config.classifier_bias, quantized=False
        )
        self.act = UngatedActivation(config.classifier_activation, size, context)
        self.norm = modernbert_norm(config, context, prefix="head.norm")
        self.out = ReplicatedLinear(size, config.num_labels, context, prefix="classifier", bias=True, quantized=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.act(self.dense(x))))


class ModernBertForSequenceClassification(ModernBertModel):
    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        self.classify = ModernBertHead(self.config, context)
