"""`WholeModel`: a model of its own that drafts for another one of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class WholeModel(nn.Module):
    """A `DraftModel` that reads tokens alone, as when it generates by itself.

    Args:
        model: built like any other; its layers may have the names of the target's.
    """

    aux_hidden_states: tuple[int, ...] = ()
    target_ids: torch.Tensor | None = None
    reads_features = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def vocab_size(self) -> int:
        """See `DraftModel`."""
        return self.model.config.vocab_size

    def features(self, hidden_states: torch.Tensor, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """Nothing that it reads; see `DraftModel`."""
        return hidden_states

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor, step: int = 0
    ) -> torch.Tensor:
        """Its own hidden states [T, D]; see `DraftModel`."""
        return self.model(input_ids, positions)

    def keep(self, input_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> None:
        """Run all of its layers, since each caches keys and values; see `DraftModel`."""
        self.forward(input_ids, positions, features)

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, D] -> float32 [n, vocabulary]."""
        return self.model.compute_logits(features)
