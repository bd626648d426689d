"""Heads that make scores of labels from a pooled hidden state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_models.layers import Layer, ReplicatedLinear

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class TanhHead(Layer):
    """``out(tanh(dense(x)))`` of ``[n, hidden_size]``: the head of BERT and RoBERTa.

    Args:
        dense, out: what the checkpoint calls the two linears.
    """

    def __init__(self, hidden_size: int, num_labels: int, context: BuildContext, *, dense: str, out: str) -> None:
        super().__init__()
        self.dense = ReplicatedLinear(hidden_size, hidden_size, context, prefix=dense, bias=True, quantized=False)
        self.out = ReplicatedLinear(hidden_size, num_labels, context, prefix=out, bias=True, quantized=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.dense(x)))
