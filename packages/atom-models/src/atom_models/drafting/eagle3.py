"""EAGLE-3 heads: Li et al. 2025, https://arxiv.org/abs/2503.01840.

One layer whose attention reads the next token beside a mixture of what several layers of the target gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from atom_models.architectures.llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, llama_norm
from atom_models.build_context import BuildContext
from atom_models.drafting.eagle_config import EagleConfig
from atom_models.drafting.stored_head import StoredHead, own_name
from atom_models.layers import (
    Layer,
    LMHead,
    ReplicatedLinear,
    Residual,
    RMSNorm,
    Rotary,
    VocabularyEmbedding,
    make_rotary,
)


class Eagle3Layer(Layer):
    """``forward(positions, embeds, features) -> residual``: queries, keys and values are made of both, side by side."""

    def __init__(self, config: EagleConfig, context: BuildContext, *, prefix: str, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(
            config,
            context,
            layer_id=0,
            prefix=f"{prefix}.self_attn",
            rotary=rotary,
            in_features=2 * config.hidden_size,
        )
        self.mlp = LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        self.input_layernorm = llama_norm(config, context, prefix=f"{prefix}.input_layernorm")
        self.hidden_norm = llama_norm(config, context, prefix=f"{prefix}.hidden_norm")
        self.post_attention_layernorm = llama_norm(
            config, context, prefix=f"{prefix}.post_attention_layernorm", feeds=self.mlp
        )
        self._norm_before_residual = config.norm_before_residual

    def forward(self, positions: torch.Tensor, embeds: torch.Tensor, features: torch.Tensor) -> Residual:
        hidden_states = self.hidden_norm(features)
        residual = Residual(hidden_states if self._norm_before_residual else features)
        residual = residual.plus(self._attend(positions, embeds, hidden_states))
        return residual.plus(self.mlp(self.post_attention_layernorm(residual)))

    def keep(self, positions: torch.Tensor, embeds: torch.Tensor, features: torch.Tensor) -> None:
        """Write keys and values, and go no further than that takes."""
        self._attend(positions, embeds, self.hidden_norm(features))

    def _attend(self, positions: torch.Tensor, embeds: torch.Tensor, hidden_states: torch.Tensor) -> Any:
        return self.self_attn(positions, torch.cat([self.input_layernorm(embeds), hidden_states], dim=-1))


class Eagle3Head(nn.Module):
    """A `DraftModel` with an embedding, a head and a vocabulary of its own, or those of its `target`.

    Args:
        config: the head's fields.
        target: gives ``embed_input_ids`` and ``compute_logits`` where `stored` has no tables; it does not become a part
            of this module.
        stored: what the checkpoint has.
        aux_hidden_states: ids of the target's layers whose outputs it reads.
    """

    reads_features = True

    def __init__(
        self,
        config: EagleConfig,
        context: BuildContext,
        *,
        target: Any,
        stored: StoredHead,
        aux_hidden_states: tuple[int, ...],
    ) -> None:
        super().__init__()
        size, count, eps = config.hidden_size, len(aux_hidden_states), config.rms_norm_eps
        rotary = make_rotary(config.rope, config.head_size, config.max_position_embeddings, context=context)
        self.aux_hidden_states, self.target_ids = aux_hidden_states, stored.target_ids
        fc_norms = [f"draft.fc_norm.{index}" for index in range(count if config.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(RMSNorm(config.target_size, eps, context, prefix=prefix) for prefix in fc_norms)
        width = count * config.target_size
        self.input_norm = RMSNorm(width, eps, context, prefix="draft.input_norm") if config.norm_before_fc else None
        self.fc = ReplicatedLinear(width, size, context, prefix="draft.fc", bias=stored.fc_bias)
        self.first = Eagle3Layer(config, context, prefix="draft.layers.0", rotary=rotary)
        self.others = nn.ModuleList(
            LlamaDecoderLayer(config, context, layer_id=layer_id, prefix=f"draft.layers.{layer_id}", rotary=rotary)
            for layer_id in range(1, config.num_hidden_layers)
        )
        self.norm = llama_norm(config, context, prefix="draft.norm")
        self.embed_tokens = self.lm_head = None
        self.vocab_size = config.num_drafted if stored.has_head else config.vocab_size
        if stored.has_embedding:
            self.embed_tokens = VocabularyEmbedding(config.vocab_size, size, context, prefix="draft.embed_tokens")
        if stored.has_head:
            self.lm_head = LMHead(size, config.num_drafted, context, prefix="draft.lm_head")
        self._targets_embedding, self._targets_head = target.embed_input_ids, target.compute_logits
        self._norm_output, self._logit_scale = config.norm_output, config.logit_scale
        # A copy of the target's table.
        self.ignored_prefixes = () if stored.has_embedding else ("draft.embed_tokens.",)

    def own_name(self, stored: str) -> str | None:
        """The name here of a tensor in the checkpoint, None where it is of no use."""
        return own_name(stored)

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """The outputs of the target's layers, mixed: [T, D] of this head; see `DraftModel`."""
        if self.fc_norm:
            aux = [norm(each) for norm, each in zip(self.fc_norm, aux, strict=True)]
        x = torch.cat(list(aux), dim=-1)
        return self.fc(x if self.input_norm is None else self.input_norm(x))

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """[T, D], the residual behind the layers, or what the norm makes of it; see `DraftModel`."""
        residual = self.first(positions, self._embed(input_ids), features)
        for layer in self.others:
            residual = layer(positions, residual)
        return self.norm(residual) if self._norm_output else residual.tensor()

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """See `DraftModel`."""
        if self.others:
            self.forward(input_ids, positions, features)
        else:
            self.first.keep(positions, self._embed(input_ids), features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, D] -> float32 [n, draft vocabulary]."""
        normed = features if self._norm_output else self.norm(features)
        logits = self._targets_head(normed) if self.lm_head is None else self.lm_head(normed)
        return logits if self._logit_scale == 1 else self._logit_scale * logits

    def _embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self._targets_embedding(input_ids) if self.embed_tokens is None else self.embed_tokens(input_ids)
