"""EAGLE heads: Li et al. 2024, https://arxiv.org/abs/2401.15077; those of EAGLE-2, 2406.16858, are the same.

One Llama layer without its first norm turns the next token and the hidden state into a guess of the next hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from atom_models.architectures.llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, llama_norm
from atom_models.build_context import BuildContext
from atom_models.drafting.eagle_config import EagleConfig
from atom_models.drafting.stored_head import own_name
from atom_models.layers import Layer, ReplicatedLinear, Residual, Rotary, make_rotary


class EagleLayer(Layer):
    """A Llama layer whose attention reads the residual as it is."""

    def __init__(self, config: EagleConfig, context: BuildContext, *, prefix: str, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, context, layer_id=0, prefix=f"{prefix}.self_attn", rotary=rotary)
        self.mlp = LlamaMLP(config, context, prefix=f"{prefix}.mlp")
        self.post_attention_layernorm = llama_norm(
            config, context, prefix=f"{prefix}.post_attention_layernorm", feeds=self.mlp
        )

    def forward(self, positions: torch.Tensor, residual: Residual) -> Residual:
        residual = residual.plus(self.self_attn(positions, residual.tensor()))
        return residual.plus(self.mlp(self.post_attention_layernorm(residual)))

    def keep(self, positions: torch.Tensor, residual: Residual) -> None:
        """Write keys and values, and go no further than that takes."""
        self.self_attn(positions, residual.tensor())


class EagleHead(nn.Module):
    """A `DraftModel` with the embedding and the head of its `target`.

    Args:
        config: the head's fields.
        target: gives ``embed_input_ids`` and ``compute_logits``; it does not become a part of this module.
        fc_bias: `fc` has a bias.
    """

    aux_hidden_states: tuple[int, ...] = ()
    reads_features = True
    target_ids: torch.Tensor | None = None
    # Copies of the target's tables.
    ignored_prefixes = ("draft.embed_tokens.", "draft.lm_head.")

    def __init__(self, config: EagleConfig, context: BuildContext, *, target: Any, fc_bias: bool) -> None:
        super().__init__()
        size = config.hidden_size
        rotary = make_rotary(config.rope, config.head_size, config.max_position_embeddings, context=context)
        self.fc = ReplicatedLinear(2 * size, size, context, prefix="draft.fc", bias=fc_bias)
        self.layers = nn.ModuleList(
            EagleLayer(config, context, prefix="draft.layers.0", rotary=rotary)
            if layer_id == 0
            else LlamaDecoderLayer(config, context, layer_id=layer_id, prefix=f"draft.layers.{layer_id}", rotary=rotary)
            for layer_id in range(config.num_hidden_layers)
        )
        self._embed, self._head = target.embed_input_ids, target.compute_logits
        self.vocab_size = config.vocab_size

    def own_name(self, stored: str) -> str | None:
        """The name here of a tensor in the checkpoint, None where it is of no use."""
        return own_name(stored)

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """The target's hidden states [T, D]; see `DraftModel`."""
        return hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """[T, D], guesses of the target's next hidden states; see `DraftModel`."""
        residual = self._inputs(input_ids, features)
        for layer in self.layers:
            residual = layer(positions, residual)
        return residual.tensor()

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """See `DraftModel`."""
        first = self.layers[0]
        if len(self.layers) == 1 and isinstance(first, EagleLayer):
            first.keep(positions, self._inputs(input_ids, features))
        else:
            self.forward(input_ids, positions, features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, D] -> float32 [n, vocabulary], by the target's head."""
        return self._head(features)

    def _inputs(self, input_ids: torch.Tensor, features: torch.Tensor) -> Residual:
        return Residual(self.fc(torch.cat([self._embed(input_ids), features], dim=-1)))
