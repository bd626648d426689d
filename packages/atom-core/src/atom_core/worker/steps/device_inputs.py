"""`DeviceInputs`: builds a step's batch on the device, in buffers that captured graphs read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from atom_core.worker.devices.pinned import Uploads
from atom_core.worker.devices.upload import upload
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_core.worker.steps.moved_positions import MovedPositions
from atom_core.worker.steps.row_fields import RowFields, num_repeated_of
from atom_kernels.protocols import BatchGeometry
from atom_kernels.select import select
from atom_kernels.step_inputs import BUILD_STEP_INPUTS, WRITE_TABLES, StepInputsProblem, TableWritesProblem

if TYPE_CHECKING:
    from atom_core.worker.vision.sight import Sight


class DeviceInputs:
    """The buffers of batches, at fixed addresses; each step overwrites them behind the one before.

    Args:
        tables: what the device keeps of the requests.
        max_num_seqs, max_num_tokens: the most requests and tokens of a batch.
        sees: pictures may move positions.

    Attributes:
        device: where they are.
        block_size: tokens of a cache block.
    """

    def __init__(
        self, tables: DeviceTables, *, block_size: int, max_num_seqs: int, max_num_tokens: int, sees: bool = False
    ) -> None:
        self._tables, self.block_size = tables, block_size
        self.device = device = tables.words.device
        num_groups, _, max_blocks = tables.block_tables.shape
        self._write_tables = select(WRITE_TABLES, TableWritesProblem()).prepare()
        self._build = select(BUILD_STEP_INPUTS, StepInputsProblem(block_size, num_groups)).prepare()

        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._input_ids, self._positions = buffer(max_num_tokens), buffer(max_num_tokens)
        self._offsets = MovedPositions(buffer(max_num_tokens)) if sees else None
        self._slot_mapping = buffer(num_groups, max_num_tokens)
        self._query_start_loc = buffer(max_num_seqs + 1, dtype=torch.int32)
        self._seq_lens = buffer(max_num_seqs, dtype=torch.int32)
        self._block_table = buffer(num_groups, max_num_seqs, max_blocks, dtype=torch.int32)
        self._sampled_tokens, self._sample_slots, self._sample_positions = buffer(3, max_num_tokens)
        self._of_groups = tuple(zip(self._block_table, self._slot_mapping, strict=True))
        self._uploads = Uploads(device)
        self._fields = RowFields(tables.padding_slot)
        # What decodes of so many requests read.
        self._parts: dict[int, Parts] = {}

    def build(
        self,
        rows: StepRows,
        shape: GraphShape | None = None,
        graph: GraphShape | None = None,
        sight: Sight | None = None,
    ) -> ModelInput:
        """The batch of a step, after `states.update(step)`; behind it the buffers hold padding (see `fill`)."""
        places = self.fill(rows, shape)
        if self._offsets is not None and shape is not None:
            self._offsets.fill(rows, shape, sight, num_repeated_of(rows, shape))
        batch = self.view(
            rows,
            num_reqs=rows.num_reqs,
            num_tokens=rows.num_tokens,
            num_decodes=rows.num_decodes,
            num_samples=len(rows.sampling),
            max_query_len=rows.max_query_len,
            max_seq_len=rows.max_seq_len,
            max_decode_len=rows.max_decode_len,
            prompts_are_new=rows.prompts_are_new,
            num_prompt_keys=rows.num_prompt_keys,
            graph=graph,
        )
        if sight is not None:
            batch = sight.shown_to(batch)
        if places is None:
            return batch
        tokens = (self._input_ids, self._positions, self._sample_slots, self._sample_positions)
        names = ("input_ids", "positions", "sample_slots", "sample_positions")
        return replace(
            batch, places=places, **{name: buffer[places] for name, buffer in zip(names, tokens, strict=True)}
        )

    def fill(self, rows: StepRows, shape: GraphShape | None = None) -> torch.Tensor | None:
        """Launch what writes the buffers.

        The batch is padded to the shape of its graph with requests that have nothing cached. In a decode each of them
        has `tokens_each`; otherwise the first has all tokens that are missing, and the others have none. Every request
        of a graph samples: those of padding, and those that sample nothing in this step, draw after the others, and
        what they draw is written nowhere.

        A decode of fewer tokens than its graph has for each computes those before them again. These write nothing to
        the cache, and what is sampled after them is written nowhere.

        Returns:
            Where the batch's own tokens stand; None where all are first.
        """
        fields = self._fields.of(rows, shape)
        longest = int(fields[2].max())
        writes, values = self._tables.take_writes()
        # Writes come first: they are words of 64 bits, which begin at even places.
        sent, num_before = self._uploads.send(writes.view(np.int32).ravel(), fields.ravel(), values), 2 * writes.size
        if num_before:
            described, for_values = sent[:num_before], sent[num_before + fields.size :]
            self._write_tables(self._tables.words, described.view(torch.int64).view(-1, 3), for_values)
        for_fields = sent[num_before : num_before + fields.size]
        self._build(
            for_fields.view(fields.shape), rows.num_reqs, longest,
            self._tables.history, self._tables.block_tables, self._tables.num_rejected,
            self._input_ids, self._positions, self._slot_mapping,
            self._query_start_loc, self._seq_lens, self._block_table,
            self._sampled_tokens, self._sample_slots, self._sample_positions,
        )  # fmt: skip
        return None if shape is None or shape.tokens_each == 1 else self._leave_out_repeated(rows, shape)

    def _leave_out_repeated(self, rows: StepRows, shape: GraphShape) -> torch.Tensor | None:
        num_repeated = num_repeated_of(rows, shape)
        if not num_repeated.any():
            return None
        is_repeated = np.arange(shape.tokens_each) < num_repeated[:, None]
        places, repeated = upload(self.device, np.flatnonzero(~is_repeated), np.flatnonzero(is_repeated))
        self._slot_mapping.index_fill_(1, repeated, -1)
        self._sample_slots.index_fill_(0, repeated, self._tables.padding_slot)
        return places

    def tokens(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and positions, int64 ``[num_tokens]`` each."""
        return self._input_ids[:num_tokens], self._positions[:num_tokens]

    def offsets(self, num_tokens: int) -> torch.Tensor | None:
        """What captured work adds to the positions, int64 ``[num_tokens]``; None where nothing moves them."""
        return None if self._offsets is None else self._offsets.buffer[:num_tokens]

    def view(
        self,
        rows: StepRows,
        *,
        num_reqs: int,
        num_tokens: int,
        num_decodes: int,
        num_samples: int,
        max_query_len: int,
        max_seq_len: int,
        max_decode_len: int = 1,
        prompts_are_new: bool = False,
        num_prompt_keys: int | None = None,
        graph: GraphShape | None = None,
    ) -> ModelInput:
        """The buffers as a batch of these sizes."""
        parts = self._parts_of(num_reqs, num_tokens, num_samples)
        geometries = tuple(
            BatchGeometry(
                query_start_loc=parts.query_start_loc,
                seq_lens=parts.seq_lens,
                block_table=block_table,
                slot_mapping=slot_mapping,
                num_reqs=num_reqs,
                num_tokens=num_tokens,
                num_decodes=num_decodes,
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                max_decode_len=max_decode_len,
                prompts_are_new=prompts_are_new,
                num_prompt_keys=num_prompt_keys,
            )
            for block_table, slot_mapping in parts.of_groups
        )
        return ModelInput(
            rows=rows,
            input_ids=parts.input_ids,
            positions=parts.positions,
            geometries=geometries,
            sampled_tokens=None if num_samples == num_tokens else parts.sampled_tokens,
            sample_slots=parts.sample_slots,
            sample_positions=parts.sample_positions,
            graph=graph,
        )

    def _parts_of(self, num_reqs: int, num_tokens: int, num_samples: int) -> Parts:
        """The buffers as far as such a batch takes them. Those of decodes are kept: most steps are decodes again."""
        is_decode = num_reqs == num_tokens == num_samples
        if is_decode and (kept := self._parts.get(num_reqs)) is not None:
            return kept
        parts = Parts(
            *self.tokens(num_tokens),
            self._query_start_loc[: num_reqs + 1],
            self._seq_lens[:num_reqs],
            tuple((table[:num_reqs], slots[:num_tokens]) for table, slots in self._of_groups),
            *(buffer[:num_samples] for buffer in (self._sampled_tokens, self._sample_slots, self._sample_positions)),
        )
        if is_decode:
            self._parts[num_reqs] = parts
        return parts


class Parts(NamedTuple):
    """The beginnings of the buffers that a batch takes; of each group of layers, block table and slots."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    of_groups: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    sampled_tokens: torch.Tensor
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor
