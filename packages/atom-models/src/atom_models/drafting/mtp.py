"""Prediction layers (MTP): DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 2.2; GLM-4.5's are the same.

Each is one more decoder layer of the model's own kind, behind the last one, over the next token and the hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from atom_models.architectures.llama import LlamaConfig, LlamaForCausalLM, llama_norm
from atom_models.build_context import BuildContext
from atom_models.layers import Layer, ReplicatedLinear, Residual, Rotary, make_rotary


class PredictionLayer(Layer):
    """``forward(positions, embeds, hidden_states) -> [T, D]``, after its norm: what the model's head reads, and the
    next prediction.

    Args:
        architecture: whose decoder layer it is.
        layer_id: behind those of the model.
    """

    def __init__(
        self,
        architecture: type[LlamaForCausalLM],
        config: LlamaConfig,
        context: BuildContext,
        *,
        layer_id: int,
        rotary: Rotary,
    ) -> None:
        super().__init__()
        prefix, size = f"model.layers.{layer_id}", config.hidden_size
        self.enorm = llama_norm(config, context, prefix=f"{prefix}.enorm")
        self.hnorm = llama_norm(config, context, prefix=f"{prefix}.hnorm")
        self.eh_proj = ReplicatedLinear(2 * size, size, context, prefix=f"{prefix}.eh_proj")
        self.layer = architecture.decoder_layer(config, context, layer_id=layer_id, prefix=prefix, rotary=rotary)
        self.norm = llama_norm(config, context, prefix=f"{prefix}.shared_head.norm")
        # Copies of the model's own tables.
        self.ignored_prefixes = (f"{prefix}.embed_tokens.", f"{prefix}.shared_head.head.")

    def forward(self, positions: torch.Tensor, embeds: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        x = self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(hidden_states)], dim=-1))
        return self.norm(self.layer(positions, Residual(x)))


class PredictionLayers(nn.Module):
    """A `DraftModel` of a checkpoint's own prediction layers, with the embedding and the head of its `target`.

    Args:
        architecture: the target's.
        config: the target's.
        target: gives ``embed_input_ids`` and ``compute_logits``; it does not become a part of this module.
        num_layers: prediction layers of the checkpoint, which take turns.
    """

    aux_hidden_states: tuple[int, ...] = ()
    reads_features = True
    target_ids: torch.Tensor | None = None

    def __init__(
        self,
        architecture: type[LlamaForCausalLM],
        config: LlamaConfig,
        context: BuildContext,
        *,
        target: Any,
        num_layers: int,
    ) -> None:
        super().__init__()
        rotary = make_rotary(config.rope, config.head_size, config.max_position_embeddings, context=context)
        first = config.num_hidden_layers
        self.layers = nn.ModuleList(
            PredictionLayer(architecture, config, context, layer_id=layer_id, rotary=rotary)
            for layer_id in range(first, first + num_layers)
        )
        self._prefixes = tuple(f"model.layers.{layer_id}." for layer_id in range(first, first + num_layers))
        self._embed, self._head = target.embed_input_ids, target.compute_logits

    def own_name(self, stored: str) -> str | None:
        """The name here of a tensor in the checkpoint, None where it is the target's."""
        return stored if stored.startswith(self._prefixes) else None

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """The target's hidden states [T, D]; see `DraftModel`."""
        return hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """[T, D] after a prediction layer's norm; see `DraftModel`."""
        layer = self.layers[step % len(self.layers)]
        return layer(positions, self._embed(input_ids), features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, D] -> float32 [n, vocabulary], by the target's head."""
        return self._head(features)
