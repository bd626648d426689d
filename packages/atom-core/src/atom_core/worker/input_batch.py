"""Builds the flat batch of one step: token ids, positions, and where keys and values go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from atom_core.messages import SchedulerOutput
from atom_core.worker.request_states import RequestStates
from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class ModelInput:
    """One step's batch; R requests, T tokens, n rows that sample.

    Attributes:
        input_ids, positions: int64 ``[T]`` on the device.
        geometries: where the tokens lie in the batch and in the blocks of each group of layers.
        query_starts: int64 ``[R + 1]`` on the host, first token of each request.
        starts: int64 ``[R]`` on the host, tokens already in the cache.
        slots: int64 ``[R]`` on the host, rows of `RequestStates`.
        sampling: int64 ``[n]`` on the host, which requests sample, in batch order.
        last_tokens: int64 ``[n]`` on the device, the last token of each of those; None where these are all T tokens.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    geometries: tuple[BatchGeometry, ...]
    query_starts: np.ndarray
    starts: np.ndarray
    slots: np.ndarray
    sampling: np.ndarray
    last_tokens: torch.Tensor | None

    @property
    def geometry(self) -> BatchGeometry:
        """Of the first group; the others differ in blocks and slots alone."""
        return self.geometries[0]


def build_input(step: SchedulerOutput, states: RequestStates, block_size: int) -> ModelInput:
    """The batch of `step`, after `states.update(step)`."""
    scheduled = step.scheduled
    num_reqs = len(scheduled)
    slot_of = states.slots
    rows = np.array(
        [(slot_of[r.request_id], r.num_computed_tokens, r.num_new_tokens, r.samples) for r in scheduled], dtype=np.int64
    )
    slots, starts, lengths, samples = rows.T
    query_starts = np.zeros(num_reqs + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    if num_tokens == num_reqs:  # decodes only
        token_slots, positions = slots, starts
    else:
        request_of_token = np.repeat(np.arange(num_reqs), lengths)
        token_slots = slots[request_of_token]
        positions = np.arange(num_tokens) + (starts - query_starts[:-1])[request_of_token]
    seq_lens = starts + lengths
    max_seq_len = int(seq_lens.max())
    block_of_token, offset_of_token = np.divmod(positions, block_size)
    sampling = np.flatnonzero(samples)

    def on_device(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if states.device == "cpu" else tensor.to(states.device, non_blocking=True)

    device_positions = on_device(positions)
    query_start_loc, device_seq_lens = on_device(query_starts.astype(np.int32)), on_device(seq_lens.astype(np.int32))
    num_decodes, max_query_len = _leading_decodes(lengths), int(lengths.max())
    geometries = []
    for block_table in states.block_tables:
        block_ids = block_table[token_slots, block_of_token]
        geometries.append(
            BatchGeometry(
                query_start_loc=query_start_loc,
                seq_lens=device_seq_lens,
                block_table=on_device(block_table[slots, : -(-max_seq_len // block_size)]),
                slot_mapping=on_device(block_ids.astype(np.int64) * block_size + offset_of_token),
                num_reqs=num_reqs,
                num_tokens=num_tokens,
                num_decodes=num_decodes,
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
            )
        )
    return ModelInput(
        input_ids=states.history[on_device(token_slots), device_positions].long(),
        positions=device_positions,
        geometries=tuple(geometries),
        query_starts=query_starts,
        starts=starts,
        slots=slots,
        sampling=sampling,
        last_tokens=None if len(sampling) == num_tokens else on_device(query_starts[1:][sampling] - 1),
    )


def _leading_decodes(lengths: np.ndarray) -> int:
    longer = np.flatnonzero(lengths > 1)
    return int(longer[0]) if len(longer) else len(lengths)
