"""`DeviceTables`: what kernels read of every running request, changed by the host in one copy and one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from atom_core.worker.requests.tables import NUMPY_DTYPES, SAMPLING_DTYPES
from atom_kernels.sampling import SamplingTables

# Every table begins at a multiple of so many words, which kernels read in wide loads.
ALIGNMENT = 32


class _Layout(NamedTuple):
    """Where a table begins among the words, how many words lie between its entries, and what these are."""

    start: int
    strides: tuple[int, ...]
    dtype: Any


class DeviceTables:
    """`RequestTables` in one tensor of 32 bit words, with one row more: for rows that pad batches.

    Writes are collected with `write`, travel with a step's other numbers, and are done before its first kernel.

    Attributes:
        words: int32, all tables.
        padding_slot: the row that padding reads; no request has it.
        history: int32 ``[num_rows, max_tokens]``.
        block_tables: int32 ``[num_groups, num_rows, max_blocks]``.
        num_rejected: int32 ``[num_rows]``, which the host never writes.
        sampling: parameters ``[num_rows]``.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, *, block_size: int, num_groups: int, device: str) -> None:
        self.padding_slot = max_num_seqs
        num_rows = _aligned(max_num_seqs + 1)
        max_tokens = _aligned(max_model_len + 1)
        max_blocks = _aligned(-(-(max_model_len + 1) // block_size))
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            **{name: (dtype, (num_rows,)) for name, dtype in SAMPLING_DTYPES.items()},
            "history": (torch.int32, (num_rows, max_tokens)),
            "block_tables": (torch.int32, (num_groups, num_rows, max_blocks)),
        }
        words_of = {name: int(np.prod(shape)) * dtype.itemsize // 4 for name, (dtype, shape) in shapes.items()}
        self.words = torch.zeros(sum(words_of.values()), dtype=torch.int32, device=device)
        self._layouts: dict[str, _Layout] = {}
        tables: dict[str, torch.Tensor] = {}
        start = 0
        for name, (dtype, shape) in shapes.items():
            table = tables[name] = self.words[start : start + words_of[name]].view(dtype).view(shape)
            strides = tuple(stride * dtype.itemsize // 4 for stride in table.stride())
            self._layouts[name] = _Layout(start, strides, NUMPY_DTYPES[dtype])
            start += words_of[name]
        self.num_rejected = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self.history, self.block_tables = tables["history"], tables["block_tables"]
        self.sampling = SamplingTables(**{name: tables[name] for name in SAMPLING_DTYPES})
        self._writes: list[tuple[int, np.ndarray]] = []

    def write(self, name: str, index: Sequence[int], values: Any) -> None:
        """See `RequestTables`."""
        place, strides, dtype = self._layouts[name]
        for position, stride in zip(index, strides, strict=True):
            place += position * stride
        # A copy: what is written is what the caller has now.
        self._writes.append((place, np.array(values, dtype=dtype, ndmin=1).view(np.int32)))

    def take_writes(self) -> tuple[np.ndarray, np.ndarray]:
        """The writes since the last call: int64 ``[n, 3]`` (first word, first value, count), and all int32 values."""
        writes, self._writes = self._writes, []
        if not writes:
            return np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int32)
        described = np.array([(start, 0, len(values)) for start, values in writes], dtype=np.int64)
        np.cumsum(described[:-1, 2], out=described[1:, 1])
        return described, np.concatenate([values for _, values in writes])


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
