"""`StateSlots`: the states of a device, slot by slot, and copies from one slot to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_core.messages import StateCopy


class StateSlots:
    """The states of all slots: tensors ``[num_slots, ...]`` of each layer that keeps states."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)

    def copy(self, copies: Sequence[StateCopy]) -> None:
        """Copy states in all layers at once; no target is named twice, or is a source too. Slots count from 1."""
        if not copies or not self._tensors:
            return
        pairs = [[copy.source - 1 for copy in copies], [copy.target - 1 for copy in copies]]
        sources, targets = torch.tensor(pairs).to(self._tensors[0].device)
        for tensor in self._tensors:
            tensor[targets] = tensor[sources]
