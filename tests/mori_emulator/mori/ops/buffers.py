"""`Buffers`: memory of one operator that lives as long as it, and that every call overwrites."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mori.ops.config import EpDispatchCombineConfig

NOTHING = -(1 << 30)


class Buffers:
    """What nobody wrote in a call is not a number, or no id."""

    def __init__(self, config: EpDispatchCombineConfig) -> None:
        most, top_k = config.max_num_tokens_to_recv, config.num_experts_per_token
        self._rows = torch.empty(most, config.hidden_dim, dtype=config.data_type)
        self._weights = torch.empty(most, top_k)
        self._ids = torch.empty(most, top_k, dtype=torch.int32)
        self._count = torch.empty(1, dtype=torch.int32)
        self._sums = torch.empty(config.max_num_inp_token_per_rank, config.hidden_dim, dtype=config.data_type)

    def filled(
        self, found: Sequence[Sequence[torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, None, torch.Tensor, torch.Tensor]:
        """Rows, weights, no scales, ids and their number; what was summed before is overwritten too."""
        self._spoil()
        for place, (row, weights, ids) in enumerate(found):
            self._rows[place], self._weights[place], self._ids[place] = row, weights, ids
        self._count.fill_(len(found))
        return self._rows, self._weights, None, self._ids, self._count

    def summed(self, sums: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sums of this rank's rows; what came is overwritten, and its number is 0."""
        self._spoil()
        self._count.zero_()
        for place, row in enumerate(sums):
            self._sums[place] = row
        return self._sums

    def _spoil(self) -> None:
        for numbers in (self._rows, self._weights, self._sums):
            numbers.fill_(float("nan"))
        self._ids.fill_(NOTHING)
        self._count.fill_(NOTHING)
