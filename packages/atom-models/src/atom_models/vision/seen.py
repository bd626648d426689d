"""`SeenRows`: which rows of a step are of pictures, and what the tower gave for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SeenRows:
    """Rows of a step in whose place features of pictures stand.

    n: these rows; D: hidden size of the language model.

    Attributes:
        rows: int64 ``[n]``, each at most once.
        features: ``[n, D * (1 + layers)]``: embeddings, and then what is added behind the first layers, one after the
            other.
    """

    rows: torch.Tensor
    features: torch.Tensor

    def embedded(self, embeds_TD: torch.Tensor) -> torch.Tensor:
        """The embeddings of a step, with those of pictures in their rows."""
        return embeds_TD.index_copy(0, self.rows, self._part(0, embeds_TD.shape[1]))

    def num_layers(self, hidden_size: int) -> int:
        """Behind how many of the first layers something is added."""
        return self.features.shape[1] // hidden_size - 1

    def added(self, layer_id: int, x_TD: torch.Tensor) -> torch.Tensor:
        """The residual behind one of these layers, with what is added to it."""
        part = self._part(1 + layer_id, x_TD.shape[1])
        return x_TD.index_copy(0, self.rows, x_TD[self.rows] + part)

    def between(self, first: int, last: int) -> SeenRows:
        """Those of rows ``first`` to ``last - 1``, counted from `first`: of a part of a prompt."""
        inside = (self.rows >= first) & (self.rows < last)
        return SeenRows(self.rows[inside] - first, self.features[inside])

    def _part(self, index: int, hidden_size: int) -> torch.Tensor:
        return self.features[:, index * hidden_size : (index + 1) * hidden_size]
