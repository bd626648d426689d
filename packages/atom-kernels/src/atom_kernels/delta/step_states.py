"""`StepStates`: from which states the sequences of a step go on, and where those behind their rows are kept.

S: sequences, J: states that are kept of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from atom_kernels.protocols import BatchGeometry, Slots


@dataclass(frozen=True)
class StepStates:
    """Slots, first row and length of each sequence, as the operators of a delta net take them."""

    slots_S: torch.Tensor
    kept_slots_SJ: torch.Tensor
    query_start_loc_S1: torch.Tensor
    seq_lens_S: torch.Tensor
    max_query_len: int


def states_of_step(keeps: Slots, geometry: BatchGeometry) -> StepStates:
    """The states of a batch, by numbers that stay on its device.

    The block table has the first of a request's slots, counted from 1; where a sequence is empty it may hold anything.
    Which of them has which state says `slot_of_state`.
    """
    import torch

    from atom_kernels.protocols import slot_of_state

    starts_S1, seq_lens_S = geometry.query_start_loc.int(), geometry.seq_lens.int()
    # A slot of -1 pads the batch.
    first_S = torch.where(seq_lens_S > 0, geometry.block_table[:, 0] - 1, -1).int()
    if keeps.slots_each == 1:
        return StepStates(first_S, first_S[:, None], starts_S1, seq_lens_S, geometry.max_query_len)
    if geometry.max_decode_len > 1:
        starts_S1, first_S, seq_lens_S = _without_repeated(geometry, starts_S1, first_S, seq_lens_S)
    behind_J = torch.arange(keeps.slots_each - 1, -1, -1, dtype=torch.int32, device=first_S.device)
    is_real_S = first_S >= 0
    slots_S = slot_of_state(first_S, seq_lens_S - starts_S1.diff(), keeps.slots_each)
    kept_SJ = slot_of_state(first_S[:, None], seq_lens_S[:, None] - behind_J, keeps.slots_each)
    slots_S = torch.where(is_real_S, slots_S, -1)
    kept_SJ = torch.where(is_real_S[:, None], kept_SJ, -1)
    return StepStates(slots_S, kept_SJ, starts_S1, seq_lens_S, geometry.max_query_len)


def _without_repeated(
    geometry: BatchGeometry, starts_S1: torch.Tensor, first_S: torch.Tensor, seq_lens_S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First rows, first slots and lengths of twice as many sequences: what pads each request, and the request.

    A captured batch has as many tokens of every request. Where one has fewer, tokens before them are there again, which
    write nothing to any cache. The states before these are gone, so they are no part of the sequence.
    """
    import torch

    is_repeated_T = geometry.slot_mapping < 0
    repeated_T1 = torch.nn.functional.pad(is_repeated_T.cumsum(0, dtype=torch.int32), (1, 0))
    num_repeated_S = repeated_T1[starts_S1.long()].diff()
    begins_S2 = torch.stack([starts_S1[:-1], starts_S1[:-1] + num_repeated_S], dim=1)
    starts = torch.cat([begins_S2.flatten(), starts_S1[-1:]])
    first_S2 = torch.stack([torch.full_like(first_S, -1), first_S], dim=1)
    return starts, first_S2.flatten(), seq_lens_S.repeat_interleave(2)
