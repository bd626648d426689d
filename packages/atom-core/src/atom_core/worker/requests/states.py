"""`RequestStates`: what the worker keeps of each running request between steps, in a row ("slot") each."""

from __future__ import annotations

import struct

import numpy as np

from atom_core.messages import NewRequest, SchedulerOutput
from atom_core.worker.requests.tables import RequestTables
from atom_core.worker.sampling.extras import SamplingExtras


class RequestStates:
    """The slot and the state of each request: the tables have what steps read, this what only the host needs.

    Block tables are filled as far as `num_blocks` of each row; entries behind a group's window mean nothing.

    Args:
        max_num_seqs: requests that may run at a time.
        tables: the rows.
        num_groups: how many groups the model's layers form.
        device: where logits are.

    Attributes:
        history: int32 ``[num_rows, max_tokens]`` of `tables`. The sampler appends to it, so that a decode finds its
            input token there before the scheduler has seen it.
        num_rejected: int32 ``[num_rows]`` of `tables`.
        num_blocks: int32 ``[num_groups, max_num_seqs]``, of each row's block table.
        num_prompt_tokens: int32 ``[max_num_seqs]``.
        sampling: parameters ``[num_rows]`` of `tables`.
        padding_slot: what rows have that pad a batch; no request has it.
        is_greedy: bool ``[max_num_seqs]``, whether the best token is taken.
        filters: bool ``[max_num_seqs]``, whether top-k, top-p or min-p leave tokens out.
        adapter_ids: int64 ``[max_num_seqs]``, the adapter of each; 0 where it has none.
        extras: what only some requests pay for (penalties, biases, logprobs ...), by the slots of these.
    """

    def __init__(
        self, max_num_seqs: int, tables: RequestTables, *, num_groups: int, vocab_size: int, device: str
    ) -> None:
        self.device = device
        self.vocab_size = vocab_size
        self._tables = tables
        self.history, self.sampling, self.padding_slot = tables.history, tables.sampling, tables.padding_slot
        self.num_rejected = tables.num_rejected
        self.num_blocks = np.zeros((num_groups, max_num_seqs), dtype=np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.is_greedy, self.filters = np.zeros((2, max_num_seqs), dtype=np.bool_)
        self.adapter_ids = np.zeros(max_num_seqs, dtype=np.int64)
        self.extras: dict[int, SamplingExtras] = {}
        self.slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def have_extras(self, slots: np.ndarray) -> bool:
        """Whether a request of these slots has some."""
        return bool(self.extras) and not self.extras.keys().isdisjoint(slots.tolist())

    @property
    def num_free(self) -> int:
        """Slots that no request has."""
        return len(self._free)

    def update(self, step: SchedulerOutput) -> None:
        """Forget what was dropped, admit what is new, enter drafts, extend block tables."""
        for request_id in step.dropped_request_ids:
            slot = self.slots.pop(request_id, None)
            if slot is not None:
                self.extras.pop(slot, None)
                self._free.append(slot)
        for request in step.new_requests:
            self._admit(request)
        for scheduled in step.scheduled:
            if drafts := scheduled.draft_token_ids:
                end = scheduled.num_computed_tokens + scheduled.num_new_tokens
                self._tables.write("history", (self.slots[scheduled.request_id], end - len(drafts)), drafts)
            if scheduled.new_block_ids:
                self._extend_tables(self.slots[scheduled.request_id], scheduled.new_block_ids)

    def _extend_tables(self, slot: int, new_block_ids: list[list[int]]) -> None:
        for group, block_ids in enumerate(new_block_ids):
            if block_ids:
                start = self.num_blocks[group, slot]
                self._tables.write("block_tables", (group, slot, start), block_ids)
                self.num_blocks[group, slot] = start + len(block_ids)

    def _admit(self, request: NewRequest) -> None:
        slot = self.slots[request.request_id] = self._free.pop()
        self._tables.write("history", (slot, 0), _int32(request.token_ids))
        self.num_blocks[:, slot] = 0
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
        self.adapter_ids[slot] = request.adapter_id
        if request.pooling is None:  # what is pooled samples nothing
            self._admit_to_sampling(slot, request)

    def _admit_to_sampling(self, slot: int, request: NewRequest) -> None:
        params = request.sampling_params
        self.is_greedy[slot] = params.temperature <= 0
        self.filters[slot] = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        values = {
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "seed": params.seed or 0,
            "sample_index": request.sample_index,
        }
        for name, value in values.items():
            self._tables.write(name, (slot,), value)
        extras = SamplingExtras.of(request, self.vocab_size, self.device)
        if extras is not None:
            self.extras[slot] = extras


def _int32(token_ids: list[int]) -> np.ndarray:
    """The same as an array; numpy takes twice as long over a long list."""
    return np.frombuffer(struct.pack(f"={len(token_ids)}i", *token_ids), dtype=np.int32)
