"""Prediction layers (MTP): DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 2.2; GLM's and Qwen's are alike.

Each is one more decoder layer of the model's own kind, over the next token and the hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from atom_models.architectures.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_norm
from atom_models.build_context import BuildContext
from atom_models.decoder.prediction_names import PredictionNames
from atom_models.layers import Layer, ReplicatedLinear, Residual, make_rotary


class PredictionInputs(Layer):
    """``forward(embeds, hidden_states) -> [T, D]``: one of both, each normed."""

    def __init__(self, config: LlamaConfig, context: BuildContext, *, names: PredictionNames) -> None:
        super().__init__()
        size = config.hidden_size
        self.enorm = llama_norm(config, context, prefix=names.embed_norm)
        self.hnorm = llama_norm(config, context, prefix=names.hidden_norm)
        self.eh_proj = ReplicatedLinear(2 * size, size, context, prefix=names.projection)

    def forward(self, embeds: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(hidden_states)], dim=-1))


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
        first, make_layer = config.num_hidden_layers, architecture.decoder_layer
        names = [architecture.names_prediction_layer(first, index) for index in range(num_layers)]
        # Layers whose checkpoint has the same names for them share inputs and norms.
        inputs = {each.projection: PredictionInputs(config, context, names=each) for each in names}
        norms = {each.last_norm: llama_norm(config, context, prefix=each.last_norm) for each in names}
        self.inputs = nn.ModuleList(inputs[each.projection] for each in names)
        self.layers = nn.ModuleList(
            make_layer(config, context, layer_id=first + index, prefix=each.layer, rotary=rotary)
            for index, each in enumerate(names)
        )
        self.norms = nn.ModuleList(norms[each.last_norm] for each in names)
        self._prefixes = tuple(each.own for each in names)
        # Copies of the model's own tables.
        self.ignored_prefixes = tuple(table for each in names for table in each.tables)
        self._embed, self._head = target.embed_input_ids, target.compute_logits
        self.vocab_size = config.vocab_size

    def own_name(self, stored: str) -> str | None:
        """The name here of a tensor in the checkpoint, None where it is the target's."""
        return stored if stored.startswith(self._prefixes) else None

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """The target's hidden states [T, D]; see `DraftModel`."""
        return hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """[T, D] after a prediction layer's norm, which the head and the next prediction read; see `DraftModel`."""
        turn = step % len(self.layers)
        read, norm, layer = self.inputs[turn], self.norms[turn], cast("LlamaDecoderLayer", self.layers[turn])
        x = read(self._embed(input_ids), features)
        return norm(layer.run_alone(positions, Residual(x)))

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """Run its layers whole, since they are built like the target's; see `DraftModel`."""
        self.forward(input_ids, positions, features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, D] -> float32 [n, vocabulary], by the target's head."""
        return self._head(features)
