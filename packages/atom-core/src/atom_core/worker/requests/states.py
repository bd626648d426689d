"""`RequestStates`: what the worker keeps of each running request between steps, a row ("slot") each."""

from __future__ import annotations

import numpy as np
import torch

from atom_core.messages import NewRequest, SchedulerOutput
from atom_core.worker.requests.device_tables import SAMPLING_DTYPES, DeviceTables
from atom_core.worker.sampling.extras import SamplingExtras
from atom_kernels.sampling import SamplingTables


class RequestStates:
    """Token history, lengths, block tables and sampling parameters of the running requests.

    Attributes:
        history: int32 ``[max_num_seqs, max_model_len + 1]`` on the device: prompt and generated tokens. The sampler
            appends to it, so that a decode finds its input token there before the scheduler has seen it.
        block_tables: int32 ``[num_groups, max_num_seqs, max_blocks]`` on the host, as far as `num_blocks` of each row.
            Entries behind a group's window mean nothing. Empty where `tables` has them.
        num_prompt_tokens: int32 ``[max_num_seqs]`` on the host.
        sampling: parameters ``[max_num_seqs]``, on the device.
        filters: bool ``[max_num_seqs]`` on the host, whether top-k, top-p or min-p leave tokens out.
        tables: what kernels read of the above, on a GPU; None on a CPU.
        extras: what only some requests pay for (penalties, biases, logprobs ...); None for the others.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        *,
        block_size: int,
        device: str,
        vocab_size: int,
        num_groups: int = 1,
        tables: DeviceTables | None = None,
    ) -> None:
        self.device = device
        self.vocab_size = vocab_size
        self.tables = tables
        # Pages of these that no request touches cost no memory.
        size = (max_num_seqs, max_model_len + 1)
        self.history = torch.from_numpy(np.zeros(size, dtype=np.int32)) if tables is None else tables.history
        max_blocks = -(-(max_model_len + 1) // block_size) if tables is None else 0
        self.block_tables = np.zeros((num_groups, max_num_seqs, max_blocks), dtype=np.int32)
        self.num_blocks = np.zeros((num_groups, max_num_seqs), dtype=np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.sampling = _sampling_tables(max_num_seqs) if tables is None else tables.sampling
        self.filters = np.zeros(max_num_seqs, dtype=np.bool_)
        self.extras: list[SamplingExtras | None] = [None] * max_num_seqs
        self.slots: dict[str, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def update(self, step: SchedulerOutput) -> None:
        """Forget what was dropped, admit what is new, extend block tables."""
        for request_id in step.dropped_request_ids:
            slot = self.slots.pop(request_id, None)
            if slot is not None:
                self.extras[slot] = None
                self._free.append(slot)
        for request in step.new_requests:
            self._admit(request)
        for forced in step.forced_tokens:
            self._write_history(self.slots[forced.request_id], forced.position, forced.token_ids)
        for scheduled in step.scheduled:
            if scheduled.new_block_ids:
                self._extend_tables(self.slots[scheduled.request_id], scheduled.new_block_ids)

    def _extend_tables(self, slot: int, new_block_ids: list[list[int]]) -> None:
        for group, block_ids in enumerate(new_block_ids):
            if block_ids:
                start = self.num_blocks[group, slot]
                if self.tables is None:
                    self.block_tables[group, slot, start : start + len(block_ids)] = block_ids
                else:
                    self.tables.write("block_tables", (group, slot, start), block_ids)
                self.num_blocks[group, slot] = start + len(block_ids)

    def _write_history(self, slot: int, position: int, token_ids: list[int]) -> None:
        if self.tables is None:
            tokens = torch.tensor(token_ids, dtype=torch.int32)
            self.history[slot, position : position + len(token_ids)] = tokens
        else:
            self.tables.write("history", (slot, position), token_ids)

    def _admit(self, request: NewRequest) -> None:
        slot = self.slots[request.request_id] = self._free.pop()
        params = request.sampling_params
        self._write_history(slot, 0, request.token_ids)
        self.num_blocks[:, slot] = 0
        self.num_prompt_tokens[slot] = request.num_prompt_tokens
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
            if self.tables is None:
                getattr(self.sampling, name)[slot] = value
            else:
                self.tables.write(name, (slot,), value)
        self.extras[slot] = SamplingExtras.of(request, self.vocab_size, self.device)


def _sampling_tables(num_rows: int) -> SamplingTables:
    return SamplingTables(**{name: torch.zeros(num_rows, dtype=dtype) for name, dtype in SAMPLING_DTYPES.items()})
