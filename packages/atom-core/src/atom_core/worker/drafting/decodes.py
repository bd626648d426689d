"""`DraftDecodes`: batches of one token a request, at positions that only the device knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class DraftDecodes:
    """Requests that go on from where they are, a token at a time. G: groups of layers; W: requests; N: blocks.

    Attributes:
        block_tables_GWN: int32.
        positions_W: int64, of the last token that was computed.
        max_seq_len: tokens that a request may come to have.
        block_size: tokens of a cache block.
        numbers_W: int64, drafts that each has room for; what comes behind them stays where the last of them is, and
            writes nothing, like the rows that pad a captured batch, which have 0. None where all have room.
    """

    block_tables_GWN: torch.Tensor
    positions_W: torch.Tensor
    max_seq_len: int
    block_size: int
    numbers_W: torch.Tensor | None = None

    def of_rows(self, rows: torch.Tensor) -> DraftDecodes:
        """Some of the requests."""
        return replace(self, block_tables_GWN=self.block_tables_GWN[:, rows], positions_W=self.positions_W[rows])

    def after(self, num_tokens: int) -> tuple[torch.Tensor, tuple[BatchGeometry, ...]]:
        """The positions of the token that comes so many after the last one, and where it lies in each group."""
        room_W = None if self.numbers_W is None else (self.numbers_W - 1).clamp_min(0)
        has_room_W = None if room_W is None else room_W >= num_tokens
        positions_W = self.positions_W + (num_tokens if room_W is None else room_W.clamp_max(num_tokens))
        num_reqs = len(positions_W)
        query_start_loc = torch.arange(num_reqs + 1, dtype=torch.int32, device=positions_W.device)
        blocks_W, offsets_W = positions_W // self.block_size, positions_W % self.block_size
        geometries = tuple(
            BatchGeometry(
                query_start_loc=query_start_loc,
                seq_lens=(positions_W + 1).int(),
                block_table=block_table_WN,
                slot_mapping=self._slots(block_table_WN.gather(1, blocks_W[:, None])[:, 0], offsets_W, has_room_W),
                num_reqs=num_reqs,
                num_tokens=num_reqs,
                num_decodes=num_reqs,
                max_query_len=1,
                max_seq_len=self.max_seq_len,
            )
            for block_table_WN in self.block_tables_GWN
        )
        return positions_W, geometries

    def _slots(self, blocks_W: torch.Tensor, offsets_W: torch.Tensor, has_room_W: torch.Tensor | None) -> torch.Tensor:
        slots_W = blocks_W.long() * self.block_size + offsets_W
        return slots_W if has_room_W is None else torch.where(has_room_W, slots_W, -1)
