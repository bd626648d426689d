"""The matrices of adapters as kernels in C take them: an address, where all that they need to know lies together."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch


class _Matrices(ctypes.Structure):
    """`matrices_t` of ``native/low_rank.h``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "ends")),
        *((name, ctypes.c_int64) for name in ("num_places", "inputs", "rank", "parts")),
    )


class MatricesInC:
    """What C reads of the matrices, which it keeps alive.

    Args:
        a_NRI, b_NrO, parts: see `add_low_rank`; contiguous.

    Attributes:
        address: an argument of C that leads to them.
        kind: inputs, outputs and dtype.
    """

    def __init__(self, a_NRI: torch.Tensor, b_NrO: torch.Tensor, parts: Sequence[int]) -> None:
        num_places, rank, num_outputs = b_NrO.shape
        ends = torch.tensor(list(accumulate(parts)))
        addresses = (tensor.data_ptr() for tensor in (a_NRI, b_NrO, ends))
        matrices = _Matrices(*addresses, num_places, a_NRI.shape[-1], rank, len(parts))
        self._alive = (a_NRI, b_NrO, ends, matrices)
        self.address = ctypes.c_void_p(ctypes.addressof(matrices))
        self.kind = (a_NRI.shape[-1], num_outputs, a_NRI.dtype)
