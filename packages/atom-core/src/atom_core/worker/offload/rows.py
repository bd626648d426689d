"""`rows_of`: the tensors of a cache as bytes, a row for each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def rows_of(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, slice]]:
    """Each tensor ``[num_blocks, ...]`` as uint8 ``[num_blocks, n]``, and the part of a page that its rows are.

    Raises:
        ValueError: the blocks of a tensor do not lie one behind the other.
    """
    start = 0
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError("blocks of a tensor that is not contiguous cannot be copied as bytes")
        row = tensor.view(len(tensor), -1).view(torch.uint8)
        yield row, slice(start, start + row.shape[1])
        start += row.shape[1]
