"""`FirstPass`: what a draft model takes in behind a step, before it goes on by itself.

G: groups of layers; R: requests; T: tokens of the step; U: tokens of the pass; N: blocks; W: requests that get drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from atom_core.worker.devices.upload import upload
from atom_core.worker.requests.tables import RequestTables
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_kernels.protocols import BatchGeometry


class FirstPass(NamedTuple):
    """A batch of U tokens.

    Attributes:
        input_ids, positions: int64 ``[U]``.
        geometries: one for each group.
        moved_R: int64, how far the row after which a request's first draft is guessed stands behind the row of the last
            token that was computed of it.
        num_ahead: how many positions it is ahead of that token.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    geometries: Sequence[BatchGeometry]
    moved_R: torch.Tensor | None = None
    num_ahead: int = 0

    def guessing_rows(self, last_W: torch.Tensor, requests_W: torch.Tensor) -> torch.Tensor:
        """The rows of the pass after which drafts are guessed.

        Args:
            last_W: the tokens of the step that were computed last, of those that stay.
        """
        return last_W if self.moved_R is None else last_W + self.moved_R[requests_W]


def with_next(batch: ModelInput, tables: RequestTables, block_size: int, takers: np.ndarray) -> FirstPass:
    """The tokens of a step, and behind those of each of `takers` the one that was sampled after them.

    Behind a rejected draft lie tokens that nobody has; what is kept there is written again.

    Args:
        batch: as it was built, of its own requests alone.
        takers: requests that get drafts, and have a slot for that token.
    """
    rows = batch.rows
    extra = np.zeros(rows.num_reqs, dtype=np.int64)
    extra[takers] = 1
    query_starts = rows.query_starts + np.concatenate([[0], np.cumsum(extra)])
    # Rows of a kind of their own, such as plain decodes, are of that kind no more.
    longer = StepRows(
        slots=rows.slots,
        starts=rows.starts,
        lengths=rows.lengths + extra,
        query_starts=query_starts,
        num_samples=rows.num_samples + extra,
        sampling=rows.sampling,
        samples_behind=rows.samples_behind,
        num_unsettled=rows.num_unsettled,
    )
    requests = np.repeat(np.arange(rows.num_reqs), longer.lengths)
    offsets = np.arange(longer.num_tokens) - query_starts[:-1][requests]
    requests_U, offsets_U, slots_R, extra_R = upload(batch.positions.device, requests, offsets, rows.slots, extra)
    return _lengthened(
        batch,
        tables,
        block_size,
        _Longer(requests_U, offsets_U, slots_R, extra_R, extra_R > 0),
        _host_numbers(longer),
    )


def with_next_captured(
    batch: ModelInput, tables: RequestTables, block_size: int, slots_R: torch.Tensor, numbers_R: torch.Tensor
) -> FirstPass:
    """As `with_next`, for a batch of decodes that has the shape of its graph; every request has one token more.

    Those that have no room for drafts compute the token before theirs once more.

    Args:
        slots_R: int64, rows of `tables`.
        numbers_R: int64, drafts that each has room for.
    """
    num_reqs, each = len(slots_R), 1 if batch.graph is None else batch.graph.tokens_each
    places_U = torch.arange(num_reqs * (each + 1), device=slots_R.device)
    numbers = {
        "num_reqs": num_reqs,
        "num_tokens": num_reqs * (each + 1),
        "num_decodes": num_reqs,
        "max_query_len": each + 1,
        "max_seq_len": batch.geometry.max_seq_len,
        "max_decode_len": each + 1,
    }
    extra_R = torch.ones_like(slots_R)
    longer = _Longer(places_U // (each + 1), places_U % (each + 1), slots_R, extra_R, numbers_R > 0)
    return _lengthened(batch, tables, block_size, longer, numbers)


class _Longer(NamedTuple):
    """Which tokens a pass has: the request and the place within it of each, and who has one more, and a slot for it."""

    requests_U: torch.Tensor
    offsets_U: torch.Tensor
    slots_R: torch.Tensor
    extra_R: torch.Tensor
    has_next_R: torch.Tensor


def _host_numbers(rows: StepRows) -> dict[str, Any]:
    return {
        "num_reqs": rows.num_reqs,
        "num_tokens": rows.num_tokens,
        "num_decodes": rows.num_decodes,
        "max_query_len": int(rows.lengths.max()),
        "max_seq_len": int((rows.starts + rows.lengths).max()),
        "max_decode_len": rows.max_decode_len,
        "prompts_are_new": rows.prompts_are_new,
        "num_prompt_keys": rows.num_prompt_keys,
    }


def _lengthened(
    batch: ModelInput, tables: RequestTables, block_size: int, longer: _Longer, numbers: dict[str, Any]
) -> FirstPass:
    firsts_R = batch.geometry.query_start_loc[:-1].long()
    starts_R, extra_R = batch.positions[firsts_R], longer.extra_R
    # Who has a token more and nothing to put there has one before the others.
    before_R = ((extra_R > 0) & ~longer.has_next_R & (starts_R > 0)).long()
    requests_U, slots_R = longer.requests_U, longer.slots_R
    own_U = longer.offsets_U - before_R[requests_U]
    positions_U = (starts_R[requests_U] + own_U).clamp_max(int(numbers["max_seq_len"]) - 1)
    lengths_R = batch.geometry.query_start_loc[1:].long() - firsts_R
    is_own_U = (own_U >= 0) & (own_U < lengths_R[requests_U])
    is_next_U = (own_U == lengths_R[requests_U]) & longer.has_next_R[requests_U]
    own_U = torch.where(is_own_U, firsts_R[requests_U] + own_U, 0)
    moved_R = torch.cumsum(extra_R, 0)
    starts = torch.cat([moved_R.new_zeros(1), moved_R]).int()
    blocks_U, offsets_U = positions_U // block_size, positions_U % block_size
    num_blocks = -(-int(numbers["max_seq_len"]) // block_size)
    geometries = []
    for geometry, table in zip(batch.geometries, tables.block_tables, strict=True):
        block_table_RN = table[slots_R, :num_blocks]
        next_U = block_table_RN[requests_U, blocks_U].long() * block_size + offsets_U
        geometries.append(
            BatchGeometry(
                query_start_loc=geometry.query_start_loc + starts,
                seq_lens=geometry.seq_lens + (extra_R - before_R).int(),
                block_table=block_table_RN,
                slot_mapping=torch.where(is_own_U, geometry.slot_mapping[own_U], torch.where(is_next_U, next_U, -1)),
                **numbers,
            )
        )
    input_ids_U = tables.history[slots_R[requests_U], positions_U].long()
    return FirstPass(input_ids_U, positions_U, geometries, moved_R, num_ahead=1)
