"""`RequestTables`: what a step reads of every running request, wherever it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from atom_kernels.sampling import SamplingTables

# Those of 64 bits come first: in one memory with the others, any number of rows leaves them aligned.
SAMPLING_DTYPES = {
    "seed": torch.int64,
    "sample_index": torch.int64,
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
}
NUMPY_DTYPES: dict[torch.dtype, Any] = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class RequestTables(Protocol):
    """Tables with a row for each slot; the tables themselves are those of `write`, by name.

    Attributes:
        history: int32 ``[num_rows, max_tokens]``, prompt and generated tokens.
        block_tables: int32 ``[num_groups, num_rows, max_blocks]``, as far as a request has blocks.
        sampling: parameters ``[num_rows]``.
        num_rejected: int32 ``[num_rows]``, drafts of each request that its last step with samples rejected.
        padding_slot: the row that padding reads; no request has it.
    """

    history: torch.Tensor
    block_tables: torch.Tensor
    num_rejected: torch.Tensor
    sampling: SamplingTables
    padding_slot: int

    def write(self, name: str, index: Sequence[int], values: Any) -> None:
        """Put `values` into the table `name` from `index` on, along its last dimension, before the next step runs.

        Args:
            name: ``history``, ``block_tables``, or a parameter of sampling.
        """
        ...
