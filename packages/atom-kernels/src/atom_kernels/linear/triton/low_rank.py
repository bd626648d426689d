"""What adapters add to a linear of few rows, inside its kernel: the shrunken inputs of a row times its adapter's B.

Shapes: M rows, N outputs (of gate and up together OUTPUTS), R shrunken inputs of a row, RANK of them for each part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import prefetch_to_l2


@triton.jit
def places_of(places_ptr, rows, num_rows, NUM_PLACES: tl.constexpr):
    """The place of each row's adapter, from 1; 0 where it has none."""
    places = tl.load(places_ptr + rows, mask=rows < num_rows, other=0)
    return tl.where((places > 0) & (places <= NUM_PLACES), places, 0)


@triton.jit
def prefetch_b(
    b_ptr, places, first, end,
    OUTPUTS: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Brings the columns of B for BLOCK_N outputs from `first` on to the L2 cache."""
    ranks = tl.arange(0, BLOCK_R)
    lines: tl.constexpr = (BLOCK_N * b_ptr.dtype.element_ty.primitive_bitwidth + 1023) // 1024
    row_at = (places - 1)[:, None] * (RANK * OUTPUTS) + ranks[None, :] * OUTPUTS
    for line in tl.static_range(lines):
        output = first + line * (BLOCK_N // lines)
        mask = (places > 0)[:, None] & (ranks < RANK)[None, :] & (output < end)
        prefetch_to_l2(b_ptr + row_at + output, mask)


@triton.jit
def added_by_adapters(
    inner_ptr, b_ptr, places, rows, outputs, first, end,
    OUTPUTS: tl.constexpr, RANK: tl.constexpr, PART_ENDS: tl.constexpr, AT_ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """float32 [BLOCK_N, BLOCK_M]: ``B inner`` of each row, for outputs below `end`, the first of which is `first`.

    Parts of the outputs end at PART_ENDS. `inner_ptr` has float32 ``[M, parts, RANK]``.
    """
    parts: tl.constexpr = len(PART_ENDS)
    whole: tl.constexpr = _are_multiples(PART_ENDS, BLOCK_N)
    at = first if whole else outputs[:, None]
    part = at * 0
    for index in tl.static_range(parts - 1):
        part += (at >= PART_ENDS[index]).to(tl.int32)
    has_adapter = places > 0
    mask = has_adapter[None, :] & (outputs < end)[:, None]
    inner_at = inner_ptr + rows[None, :] * (parts * RANK) + part * RANK
    b_at = b_ptr + ((places - 1) * (RANK * OUTPUTS))[None, :] + outputs[:, None]
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for begin in tl.range(0, RANK, AT_ONCE, num_stages=1):
        for rank in tl.static_range(AT_ONCE):
            is_rank = begin + rank < RANK
            b = tl.load(b_at + (begin + rank) * OUTPUTS, mask=mask & is_rank, other=0.0)
            inner = tl.load(inner_at + (begin + rank), mask=has_adapter[None, :] & is_rank, other=0.0)
            sums += b.to(tl.float32) * inner
    return sums


@triton.constexpr_function
def _are_multiples(ends, size):
    return all(end % size == 0 for end in ends)
