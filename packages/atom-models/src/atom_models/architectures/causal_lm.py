"""`DecoderForCausalLM`: what every decoder-only model has around its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from atom_models.architectures.config import read_config
from atom_models.build_context import BuildContext
from atom_models.layers import LMHead


class DecoderForCausalLM(nn.Module):
    """An embedding and layers as `model`, and a head over the vocabulary; models name their config and `make_model`."""

    config_class: type[Any]

    def __init__(self, config: Mapping[str, Any], context: BuildContext) -> None:
        super().__init__()
        self.config = read_config(self.config_class, config)
        self.model = self.make_model(self.config, context)
        self.lm_head = LMHead(
            self.config.hidden_size,
            self.config.vocab_size,
            context,
            tied_to=self.model.embed_tokens if self.config.tie_word_embeddings else None,
        )

    def make_model(self, config: Any, context: BuildContext) -> Any:
        """The embedding, `embed_tokens`, and the layers: a module with `embed` and `forward`."""
        raise NotImplementedError

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed(input_ids)

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> Any:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden_states)
