"""`HostTables`: the tables of running requests in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from atom_core.worker.requests.tables import NUMPY_DTYPES, SAMPLING_DTYPES
from atom_kernels.sampling import SamplingTables


class HostTables:
    """`RequestTables` that are written at once. Rows that no request touches cost no memory.

    Attributes:
        arrays: the tables by name; the tensors below have their memory.
        history: int32 ``[max_num_seqs + 1, max_model_len + 1]``.
        block_tables: int32 ``[num_groups, max_num_seqs, max_blocks]``.
        num_rejected: int32 ``[max_num_seqs + 1]``.
        sampling: parameters ``[max_num_seqs]``.
        padding_slot: the last row. Batches are not padded; drafts that nobody has room for are written there.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, *, block_size: int, num_groups: int) -> None:
        self.padding_slot = max_num_seqs
        max_blocks = -(-(max_model_len + 1) // block_size)
        self.arrays = {
            **{name: np.zeros(max_num_seqs, NUMPY_DTYPES[dtype]) for name, dtype in SAMPLING_DTYPES.items()},
            "history": np.zeros((max_num_seqs + 1, max_model_len + 1), dtype=np.int32),
            "block_tables": np.zeros((num_groups, max_num_seqs, max_blocks), dtype=np.int32),
        }
        self.history = torch.from_numpy(self.arrays["history"])
        self.block_tables = torch.from_numpy(self.arrays["block_tables"])
        self.num_rejected = torch.zeros(max_num_seqs + 1, dtype=torch.int32)
        self.sampling = SamplingTables(**{name: torch.from_numpy(self.arrays[name]) for name in SAMPLING_DTYPES})

    def write(self, name: str, index: Sequence[int], values: Any) -> None:
        """See `RequestTables`."""
        table = self.arrays[name]
        array = np.atleast_1d(np.asarray(values, dtype=table.dtype))
        *row, start = index
        table[(*row, slice(start, start + len(array)))] = array
