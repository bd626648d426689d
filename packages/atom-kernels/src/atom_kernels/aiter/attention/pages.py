"""Lists of pages as AITER's kernels take them, made of block tables on the device and without a look at their values.

Shapes: R requests, W blocks of a row of the block table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Kernels read ahead of a list's end: so many entries more are there, and name the first page.
READ_AHEAD = 128


@dataclass(frozen=True)
class PageList:
    """The pages of all requests, one after the other.

    Attributes:
        indptr: int32 ``[R + 1]``, first page of each request in `indices`.
        indices: int32, page ids; behind the last one that `indptr` names, page 0.
        last_page_lens: int32 ``[R]``, tokens in the last page of each request.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_lens: torch.Tensor


def list_pages(block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, max_seq_len: int) -> PageList:
    """Blocks as pages.

    Args:
        block_table: int32 ``[R, W]``, entries past a request's end undefined.
        seq_lens: int32 ``[R]``, 0 for an empty request.
        block_size: tokens of a block.
        max_seq_len: known on the host, at least the largest of `seq_lens`.
    """
    width = min(block_table.shape[1], -(-max_seq_len // block_size))
    counts = (seq_lens + (block_size - 1)) // block_size
    # An empty request has no pages; its last one counts as full.
    last_page_lens = (seq_lens - 1) % block_size + 1
    return _gather(block_table[:, :width], counts, last_page_lens)


def list_tokens(
    block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, max_seq_len: int, total: int | None = None
) -> PageList:
    """Tokens as pages of one, numbered as slots are; see `list_pages`. There is room for `total`, None for the most."""
    width = min(block_table.shape[1], -(-max_seq_len // block_size))
    offsets = torch.arange(block_size, dtype=torch.int32, device=block_table.device)
    slots = (block_table[:, :width, None] * block_size + offsets).flatten(1)
    return _gather(slots, seq_lens, torch.ones_like(seq_lens), total)


def _gather(
    entries_RW: torch.Tensor, counts_R: torch.Tensor, last_page_lens: torch.Tensor, total: int | None = None
) -> PageList:
    num_requests, width = entries_RW.shape
    indptr = counts_R.new_zeros(num_requests + 1, dtype=torch.int32)
    torch.cumsum(counts_R, 0, dtype=torch.int32, out=indptr[1:])
    columns = torch.arange(width, dtype=torch.int32, device=entries_RW.device)
    is_used = columns < counts_R.unsqueeze(1)
    # What is not used goes to the last entry of those read ahead, as page 0.
    room = num_requests * width if total is None else min(num_requests * width, total)
    indices = entries_RW.new_zeros(room + READ_AHEAD, dtype=torch.int32)
    places = torch.where(is_used, indptr[:-1].unsqueeze(1) + columns, indices.shape[0] - 1)
    values = torch.where(is_used, entries_RW, 0).to(torch.int32)
    indices.scatter_(0, places.flatten().to(torch.int64), values.flatten())
    return PageList(indptr, indices, last_page_lens.to(torch.int32))
