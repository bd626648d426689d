"""`ExchangeRule`: whether rows of a step are gathered on all ranks, or dispatched to the owners of their experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig

# A dispatch has to save so many bytes of a step, since it first exchanges how many rows it sends, and the host waits.
# On CPUs this is where gloo's times cross; on GPUs, where nothing was measured, it is what NVLink moves in some 50 us.
_LEAST_SAVED = {"cpu": 1 << 20, "cuda": 16 << 20}


@dataclass(frozen=True)
class ExchangeRule:
    """What is chosen for a mixture, from numbers that all ranks know.

    Attributes:
        asked: "gather", "all-to-all", or "auto" for whichever should take less time.
        num_ranks: the ranks over which experts are spread.
        top_k: the experts of a row.
        row_bytes: what a row has in bytes, there and back.
        device: "cpu" or "cuda".
    """

    asked: str
    num_ranks: int
    top_k: int
    row_bytes: int
    device: str

    @classmethod
    def of(cls, config: MoEConfig, context: BuildContext) -> ExchangeRule:
        """That of a mixture, by what the context asks for."""
        num_ranks = context.groups.data.size * context.groups.tensor.size
        of_choice = config.top_k * (torch.float32.itemsize + torch.int32.itemsize)
        row_bytes = 2 * config.hidden_size * context.dtype.itemsize + of_choice
        return cls(context.expert_exchange, num_ranks, config.top_k, row_bytes, torch.device(context.device).type)

    def dispatches(self, counts: Sequence[int]) -> bool:
        """Whether the rows of a step go to the owners of their experts alone.

        A gather moves the most rows that an engine has, for each engine, to all others; a dispatch moves real rows, to
        those that own one of their experts. How many these are is expected of experts that are chosen evenly.

        Args:
            counts: the rows of each engine.
        """
        if self.asked != "auto":
            return self.asked == "all-to-all"
        is_owner = 1 - (1 - 1 / self.num_ranks) ** self.top_k
        rows_saved = len(counts) * max(counts) - sum(counts) * is_owner
        return rows_saved * (len(counts) - 1) * self.row_bytes > _LEAST_SAVED[self.device]
