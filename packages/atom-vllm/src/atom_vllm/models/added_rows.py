"""What towers add behind the first layers of a language model (DeepStack), from one call of vLLM's to the next.

vLLM asks for the embeddings of a step, and then for the step: between them these rows wait, at addresses that graphs
may have captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class EveryRow:
    """As `SeenRows`, of a step whose embeddings have what was seen already: ``[T, D * layers]``, zeros for texts."""

    added_rows: torch.Tensor

    def embedded(self, embeds_TD: torch.Tensor) -> torch.Tensor:
        return embeds_TD

    def num_layers(self, hidden_size: int) -> int:
        return self.added_rows.shape[1] // hidden_size

    def added(self, layer_id: int, x_TD: torch.Tensor) -> torch.Tensor:
        size = x_TD.shape[1]
        return x_TD + self.added_rows[:, layer_id * size : (layer_id + 1) * size]


class AddedRows:
    """The rows of one step at a time."""

    def __init__(self, model: Any, vllm_config: Any) -> None:
        more = 0 if model.vision is None else model.vision.width - model.config.hidden_size
        self._rows: torch.Tensor | None = None
        if more:
            most = vllm_config.scheduler_config.max_num_batched_tokens
            self._rows = torch.zeros(
                most, more, dtype=vllm_config.model_config.dtype, device=vllm_config.device_config.device
            )
        self._num_used = 0

    def clear(self) -> None:
        """Nothing is added to the next step."""
        if self._rows is not None:
            self._rows[: self._num_used].zero_()
        self._num_used = 0

    def put(self, features: torch.Tensor, marked: torch.Tensor) -> None:
        """`features` ``[n, D * layers]`` are added to the n rows that `marked` ``[T]`` marks."""
        if self._rows is not None:
            self._num_used = len(marked)
            self._rows[: len(marked)].masked_scatter_(marked.unsqueeze(1), features)

    def of(self, num_tokens: int) -> torch.Tensor | None:
        """What is added to a step of so many tokens: ``[T, D * layers]``; None where no layer gets anything."""
        return None if self._rows is None else self._rows[:num_tokens]
