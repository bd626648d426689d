"""The flat batch of one step: what its requests are asked for, and the tensors that a model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from atom_core.messages import SchedulerOutput
from atom_core.worker.requests.host_tables import HostTables
from atom_kernels.protocols import BatchGeometry

if TYPE_CHECKING:
    from atom_core.worker.graphs.shapes import GraphShape
    from atom_models.adapters.step import AdapterStep
    from atom_models.vision.seen import SeenRows


@dataclass(frozen=True)
class StepRows:
    """What a step asks of its R requests, on the host, int64.

    Attributes:
        slots: ``[R]``, rows of `RequestStates`.
        starts: ``[R]``, tokens already in the cache, if all drafts of the step before are right.
        num_unsettled: ``[R]``, how many of them are such drafts, of which the device takes off those that were not.
        lengths: ``[R]``, tokens to compute.
        query_starts: ``[R + 1]``, first token of each request in the flat batch.
        num_samples: ``[R]``, tokens to sample after the last tokens of each.
        sampling: ``[n]``, the request of each sample, in batch order.
        samples_behind: ``[n]``, how many samples of its request come after it.
    """

    slots: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    query_starts: np.ndarray
    num_samples: np.ndarray
    sampling: np.ndarray
    samples_behind: np.ndarray
    num_unsettled: np.ndarray

    @classmethod
    def of(cls, step: SchedulerOutput, slot_of: Mapping[str, int]) -> StepRows:
        """The rows of `step`, whose requests have the slots `slot_of`."""
        columns = np.array(
            [
                (slot_of[r.request_id], r.num_computed_tokens, r.num_new_tokens, r.num_samples, r.num_unsettled)
                for r in step.scheduled
            ],
            dtype=np.int64,
        ).T.copy()
        slots, starts, lengths, num_samples, num_unsettled = columns
        if (columns[2:] == _DECODE).all():
            firsts = np.arange(len(slots) + 1)
            return DecodeRows(slots, starts, lengths, firsts, num_samples, firsts[:-1], num_unsettled, num_unsettled)
        query_starts = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(lengths, out=query_starts[1:])
        sampling = np.repeat(np.arange(len(slots)), num_samples)
        samples_behind = np.cumsum(num_samples)[sampling] - np.arange(1, len(sampling) + 1)
        return cls(slots, starts, lengths, query_starts, num_samples, sampling, samples_behind, num_unsettled)

    @property
    def num_reqs(self) -> int:
        return len(self.slots)

    @property
    def has_unsettled(self) -> bool:
        """Whether drafts of the step before may be taken off."""
        return bool(self.num_unsettled.any())

    @cached_property
    def num_tokens(self) -> int:
        return int(self.query_starts[-1])

    @property
    def max_query_len(self) -> int:
        """The most tokens that a request computes."""
        return int(self.lengths.max())

    @property
    def max_seq_len(self) -> int:
        """The most tokens that a request has, cached and computed."""
        return int((self.starts + self.lengths).max())

    @cached_property
    def has_guesses(self) -> bool:
        """Whether drafts are to be verified: requests sample several tokens."""
        return bool(self.samples_behind.any())

    @cached_property
    def max_decode_len(self) -> int:
        """Tokens of a decode at most: one, and the drafts that are verified."""
        return max(int(self.num_samples.max()), 1)

    @cached_property
    def num_decodes(self) -> int:
        """Leading requests of at most `max_decode_len` tokens."""
        longer = np.flatnonzero(self.lengths > self.max_decode_len)
        return int(longer[0]) if len(longer) else len(self.lengths)

    @property
    def prompts_are_new(self) -> bool:
        """Nothing is cached yet of the requests behind the decodes."""
        return not self.starts[self.num_decodes :].any()

    @property
    def num_prompt_keys(self) -> int:
        """Tokens of the requests behind the decodes, cached or new."""
        return int((self.starts + self.lengths)[self.num_decodes :].sum())

    @property
    def sampled_slots(self) -> np.ndarray:
        """``[n]``, of the request of each sample."""
        return self.slots[self.sampling]

    @property
    def sampled_positions(self) -> np.ndarray:
        """``[n]``, where the sampled tokens will stand in their requests."""
        return (self.starts + self.lengths)[self.sampling] - self.samples_behind

    @property
    def sampled_tokens(self) -> np.ndarray:
        """``[n]``, the token of the flat batch after which each is sampled."""
        return self.query_starts[1:][self.sampling] - 1 - self.samples_behind


class DecodeRows(StepRows):
    """`StepRows` whose requests compute one token and sample one each, as in most steps: what follows is known."""

    @property
    def has_unsettled(self) -> bool:
        return False

    @property
    def has_guesses(self) -> bool:
        return False

    @property
    def num_tokens(self) -> int:
        return len(self.slots)

    @property
    def max_query_len(self) -> int:
        return 1

    @property
    def max_seq_len(self) -> int:
        return int(self.starts.max()) + 1

    @property
    def num_decodes(self) -> int:
        return len(self.slots)

    @property
    def max_decode_len(self) -> int:
        return 1

    @property
    def prompts_are_new(self) -> bool:
        return True

    @property
    def num_prompt_keys(self) -> int:
        return 0

    @property
    def sampled_slots(self) -> np.ndarray:
        return self.slots

    @property
    def sampled_positions(self) -> np.ndarray:
        return self.starts + 1

    @property
    def sampled_tokens(self) -> np.ndarray:
        return self.sampling


@dataclass(frozen=True)
class ModelInput:
    """One step's batch; T tokens, n rows that sample.

    Attributes:
        rows: what was asked for.
        input_ids, positions: int64 ``[T]`` on the device.
        geometries: where the tokens lie in the batch and in the blocks of each group of layers.
        sampled_tokens: int64 ``[n]`` on the device, the tokens after which others are sampled; None where these are
            all T tokens.
        sample_slots, sample_positions: int64 ``[n]`` on the device, rows of `RequestStates` that sample, and where the
            sampled tokens will stand.
        graph: the shape of the graph that runs all of it; None where none does.
        places: int64 ``[n]`` on the device, where its tokens stand among those of the graph; None where they are the
            first. Geometries are then those of the graph.
        token_types: int64 ``[T]`` on the device, 1 in the second of two texts; None where no request has two.
        adapters: which adapter each token has; None where none has one.
        offsets: int64 ``[T]`` or ``[3, T]`` on the device, what the model adds to `positions` where pictures moved
            tokens; None where none did.
        seen: rows of pictures, and what stands there; None where there are none.
    """

    rows: StepRows
    input_ids: torch.Tensor
    positions: torch.Tensor
    geometries: tuple[BatchGeometry, ...]
    sampled_tokens: torch.Tensor | None
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor
    graph: GraphShape | None = None
    places: torch.Tensor | None = None
    token_types: torch.Tensor | None = None
    adapters: AdapterStep | None = None
    offsets: torch.Tensor | None = None
    seen: SeenRows | None = None

    @property
    def has_pictures(self) -> bool:
        """Whether some tokens are of pictures."""
        is_moved = self.offsets is not None and self.offsets.dim() > 1
        return self.seen is not None or is_moved or self.geometry.sees_until is not None

    @property
    def model_positions(self) -> torch.Tensor:
        """Int64 ``[T]`` or ``[3, T]``: the positions that the model is given."""
        return self.positions if self.offsets is None else self.positions + self.offsets

    @property
    def geometry(self) -> BatchGeometry:
        """The geometry of the first group; the others differ in blocks and slots alone."""
        return self.geometries[0]

    def of_graph(self, of_graph: torch.Tensor, count: int) -> torch.Tensor:
        """Its own `count` rows among those that its graph gave."""
        return of_graph[:count] if self.places is None else of_graph[self.places]

    def of_sampling_rows(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The rows ``[n, D]`` after which a token is sampled."""
        return hidden_TD if self.sampled_tokens is None else hidden_TD[self.sampled_tokens]


def token_types(step: SchedulerOutput, rows: StepRows) -> torch.Tensor | None:
    """``[T]`` on the host, 1 in the second of two texts; None where no request has two. Such prompts are whole."""
    firsts = {request.request_id: request.num_first_tokens for request in step.new_requests if request.num_first_tokens}
    if not firsts:
        return None
    types = np.zeros(rows.num_tokens, dtype=np.int64)
    for index, scheduled in enumerate(step.scheduled):
        if (num_first := firsts.get(scheduled.request_id)) is not None:
            types[rows.query_starts[index] + num_first : rows.query_starts[index + 1]] = 1
    return _tensor(types)


def build_input(rows: StepRows, tables: HostTables, block_size: int) -> ModelInput:
    """The batch of a step on a CPU, after its requests' tables were written and the step before was sampled."""
    if rows.has_unsettled:
        num_rejected = np.where(rows.num_unsettled, tables.num_rejected.numpy()[rows.slots], 0)
        rows = replace(rows, starts=rows.starts - num_rejected, num_unsettled=np.zeros_like(num_rejected))
    slots, starts, num_reqs, num_tokens = rows.slots, rows.starts, rows.num_reqs, rows.num_tokens
    if num_tokens == num_reqs:  # decodes only
        token_slots, positions = slots, starts
    else:
        request_of_token = np.repeat(np.arange(num_reqs), rows.lengths)
        token_slots = slots[request_of_token]
        positions = np.arange(num_tokens) + (starts - rows.query_starts[:-1])[request_of_token]
    seq_lens = starts + rows.lengths
    max_seq_len = int(seq_lens.max())
    block_of_token, offset_of_token = np.divmod(positions, block_size)
    query_start_loc, device_seq_lens = _tensor(rows.query_starts.astype(np.int32)), _tensor(seq_lens.astype(np.int32))
    num_decodes = rows.num_decodes
    max_query_len = 1 if num_decodes == num_tokens else int(rows.lengths.max())
    geometries = []
    for block_table in tables.arrays["block_tables"]:
        block_ids = block_table[token_slots, block_of_token]
        geometries.append(
            BatchGeometry(
                query_start_loc=query_start_loc,
                seq_lens=device_seq_lens,
                block_table=_tensor(block_table[slots, : -(-max_seq_len // block_size)]),
                slot_mapping=_tensor(block_ids.astype(np.int64) * block_size + offset_of_token),
                num_reqs=num_reqs,
                num_tokens=num_tokens,
                num_decodes=num_decodes,
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                max_decode_len=rows.max_decode_len,
                prompts_are_new=rows.prompts_are_new,
                num_prompt_keys=rows.num_prompt_keys,
            )
        )
    return ModelInput(
        rows=rows,
        input_ids=_tensor(tables.arrays["history"][token_slots, positions].astype(np.int64)),
        positions=_tensor(positions),
        geometries=tuple(geometries),
        sampled_tokens=None if len(rows.sampling) == num_tokens else _tensor(rows.sampled_tokens),
        sample_slots=_tensor(rows.sampled_slots),
        sample_positions=_tensor(rows.sampled_positions),
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


# Columns of a `DecodeRows`: tokens to compute, to sample, and drafts that are not settled.
_DECODE = np.array([[1], [1], [0]])
_NOTHING = np.zeros(0, dtype=np.int64)
NO_ROWS = StepRows(_NOTHING, _NOTHING, _NOTHING, np.zeros(1, dtype=np.int64), _NOTHING, _NOTHING, _NOTHING, _NOTHING)
"""The rows of a batch that is all padding."""
