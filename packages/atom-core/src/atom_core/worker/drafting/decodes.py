"""`DraftDecodes`: batches of one token a request, at positions that only the device knows. K: passes."""

from __future__ import annotations

from dataclasses import dataclass

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
            writes nothing, like the rows that pad a captured batch, which have 0.
    """

    block_tables_GWN: torch.Tensor
    positions_W: torch.Tensor
    max_seq_len: int
    block_size: int
    numbers_W: torch.Tensor

    def passes(self, number: int) -> list[tuple[torch.Tensor, tuple[BatchGeometry, ...]]]:
        """The positions of each of the next `number` tokens, and where it lies in each group.

        They are made together, since what a kernel of a few numbers takes is its launch.
        """
        num_reqs, device = len(self.positions_W), self.positions_W.device
        steps_K1 = torch.arange(1, number + 1, device=device)[:, None]
        # The last draft is computed by nobody here.
        room_W = (self.numbers_W - 1).clamp_min(0)
        has_room_KW = steps_K1 <= room_W
        positions_KW = self.positions_W + torch.minimum(steps_K1, room_W)
        blocks_KW, offsets_KW = positions_KW // self.block_size, positions_KW % self.block_size
        seq_lens_KW = (positions_KW + 1).int()
        query_start_loc = torch.arange(num_reqs + 1, dtype=torch.int32, device=device)
        slots_GKW = []
        for block_table_WN in self.block_tables_GWN:
            slots_KW = block_table_WN.gather(1, blocks_KW.T).T.long() * self.block_size + offsets_KW
            slots_GKW.append(torch.where(has_room_KW, slots_KW, -1))
        return [
            (
                positions_KW[index],
                tuple(
                    BatchGeometry(
                        query_start_loc=query_start_loc,
                        seq_lens=seq_lens_KW[index],
                        block_table=block_table_WN,
                        slot_mapping=slots_KW[index],
                        num_reqs=num_reqs,
                        num_tokens=num_reqs,
                        num_decodes=num_reqs,
                        max_query_len=1,
                        max_seq_len=self.max_seq_len,
                    )
                    for block_table_WN, slots_KW in zip(self.block_tables_GWN, slots_GKW, strict=True)
                ),
            )
            for index in range(number)
        ]
