"""BERT: Devlin et al. 2019, https://arxiv.org/abs/1810.04805. So are bge, e5, gte and many others by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.encoder import Encoder, EncoderConfig, TanhHead
from atom_models.layers import (
    EncoderAttention,
    Layer,
    LayerNorm,
    MergedColumnParallelLinear,
    Residual,
    Rotary,
    RowParallelLinear,
    Term,
    UngatedMLP,
    VocabularyEmbedding,
    make_rotary,
)


@dataclass(frozen=True)
class BertConfig(EncoderConfig):
    """Fields of `config.json`, under their Hugging Face names."""

    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12

    always: ClassVar[Mapping[str, tuple[Any, ...]]] = {"position_embedding_type": ("absolute",)}
    # Training's, and those of the pooler, which Google's checkpoints have beside what is read.
    unread: ClassVar[tuple[str, ...]] = (
        *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    )

    @property
    def first_position(self) -> int:
        """Row of the table of positions that a text's first token has."""
        return 0

    @property
    def rope(self) -> Mapping[str, Any] | None:
        """How queries and keys are rotated; None where positions have a table instead."""
        return None


class BertEmbeddings(Layer):
    """A token's row, its position's if they have a table, and its text's (of a pair: 0, then 1), normed together."""

    def __init__(self, config: BertConfig, context: BuildContext, *, prefix: str) -> None:
        super().__init__()
        self._first_position = config.first_position

        def table(num_rows: int, name: str) -> VocabularyEmbedding:
            return VocabularyEmbedding(num_rows, config.hidden_size, context, prefix=f"{prefix}.{name}", adaptable=True)

        self.word_embeddings = table(config.vocab_size, "word_embeddings")
        self.position_embeddings: VocabularyEmbedding | None = None
        if config.rope is None:
            self.position_embeddings = table(config.max_position_embeddings, "position_embeddings")
        self.token_type_embeddings = table(config.type_vocab_size, "token_type_embeddings")
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps, context, prefix=f"{prefix}.LayerNorm")

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None
    ) -> torch.Tensor:
        token_types = torch.zeros_like(input_ids) if token_types is None else token_types
        embeds = self.word_embeddings(input_ids) + self.token_type_embeddings(token_types)
        if self.position_embeddings is not None:
            embeds = embeds + self.position_embeddings(positions + self._first_position)
        return self.norm(embeds)


class BertAttention(Layer):
    def __init__(self, config: BertConfig, context: BuildContext, *, prefix: str, rotary: Rotary | None) -> None:
        super().__init__()
        size, num_heads = config.hidden_size, context.split(config.num_attention_heads, "num_attention_heads")
        self.qkv_proj = MergedColumnParallelLinear(
            size, dict.fromkeys(("query", "key", "value"), size), context, prefix=f"{prefix}.self.qkv", bias=True
        )
        self.attn = EncoderAttention(
            num_heads, config.head_size, context=context, prefix=f"{prefix}.self.attn", rotary=rotary
        )
        self.dense = RowParallelLinear(size, size, context, prefix=f"{prefix}.output.dense", bias=True)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> Term:
        q, k, v = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        return self.dense(self.attn(q, k, v, positions))


class BertLayer(Layer):
    """Each half is added to its input, and the sum is normed."""

    def __init__(self, config: BertConfig, context: BuildContext, *, prefix: str, rotary: Rotary | None) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.attention = BertAttention(config, context, prefix=f"{prefix}.attention", rotary=rotary)
        self.attention_norm = LayerNorm(size, eps, context, prefix=f"{prefix}.attention.output.LayerNorm")
        self.mlp = UngatedMLP(
            size,
            config.intermediate_size,
            config.hidden_act,
            context=context,
            prefix=prefix,
            up="intermediate.dense",
            down="output.dense",
            bias=True,
        )
        self.mlp_norm = LayerNorm(size, eps, context, prefix=f"{prefix}.output.LayerNorm")

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        attended = Residual(hidden_states).plus(self.attention(positions, hidden_states))
        hidden_states = self.attention_norm(attended)
        return self.mlp_norm(Residual(hidden_states).plus(self.mlp(hidden_states)))


class BertModel(Encoder):
    config_class: ClassVar[type[BertConfig]] = BertConfig
    base_prefix = "bert."
    # The table of positions 0, 1, 2 ..., and what pre-training had: a pooler, and heads for masked words.
    passed_over = ("embeddings.position_ids", "pooler.", "cls.")

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        known = self.config
        self.embeddings = BertEmbeddings(known, context, prefix="embeddings")
        rotary: Rotary | None = None
        if known.rope is not None:
            rotary = make_rotary(known.rope, known.head_size, known.max_position_embeddings, context=context)
        self.layers = nn.ModuleList(
            BertLayer(known, context, prefix=f"encoder.layer.{layer_id}", rotary=rotary)
            for layer_id in range(known.num_hidden_layers)
        )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        hidden_states = self.embeddings(input_ids, positions, token_types)
        for layer in self.layers:
            hidden_states = layer(positions, hidden_states)
        return hidden_states


class BertForMaskedLM(BertModel):
    """Saved with the head of its pre-training, which is passed over."""


class BertForSequenceClassification(BertModel):
    passed_over = ("embeddings.position_ids", "cls.")

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__(config, context)
        size, num_labels = self.config.hidden_size, self.config.num_labels
        self.classify = TanhHead(size, num_labels, context, dense="pooler.dense", out="classifier")
