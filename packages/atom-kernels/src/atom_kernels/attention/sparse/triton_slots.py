"""Chosen positions to slots of the cache, in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

if TYPE_CHECKING:
    from atom_kernels.attention.index.rows import RowsOfRequests

_MOST_AT_ONCE = 1024


# What changes from step to step must not make Triton compile again.
@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_table_ptr"])
def chosen_slots_kernel(
    chosen_ptr, requests_ptr, block_table_ptr, slots_ptr, table_stride,
    TOP_K: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program a row and `BLOCK_K` of its positions; what stands behind the last one becomes slot 0."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    table = block_table_ptr + tl.load(requests_ptr + row).to(tl.int64) * table_stride
    position = tl.load(chosen_ptr + row * TOP_K + k, mask=k < TOP_K, other=-1)
    block = tl.load(table + position // BLOCK_SIZE, mask=position >= 0, other=0)
    slot = tl.where(position >= 0, block * BLOCK_SIZE + position % BLOCK_SIZE, 0)
    tl.store(slots_ptr + row * TOP_K + k, slot, mask=k < TOP_K)


def chosen_slots(
    chosen_TK: torch.Tensor, rows: RowsOfRequests, block_table: torch.Tensor, block_size: int, slots_TK: torch.Tensor
) -> None:
    """Fills `slots_TK` for as many rows as it has.

    It is launched plainly, so that the attention behind it may read slots before it waits for its other inputs: see
    `atom_kernels.triton.support`.
    """
    num_rows, top_k = slots_TK.shape
    block_k = min(power_of_two(top_k), _MOST_AT_ONCE)
    launch(
        chosen_slots_kernel, (num_rows, -(-top_k // block_k)),
        chosen_TK, rows.requests, block_table, slots_TK, block_table.stride(0),
        TOP_K=top_k, BLOCK_SIZE=block_size, BLOCK_K=block_k, num_warps=4,
    )  # fmt: skip
