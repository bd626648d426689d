"""A Triton kernel that accepts draws. Shapes: n rows that sample, V tokens of the vocabulary."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit(do_not_specialize=["num_rows", "padding_slot", "not_finite"])
def accept_kernel(
    ids_ptr, logits_ptr, row_stride, token_stride, slots_ptr, positions_ptr, history_ptr, history_stride,
    num_rejected_ptr, num_rows, padding_slot, not_finite, LANES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for each row; that of the first row of a request goes through all of it, the others do nothing.

    So nobody else writes what a program reads.
    """
    wait_for_inputs(DEPENDENT)
    first = tl.program_id(0)
    slot = tl.load(slots_ptr + first).to(tl.int64)
    before = tl.load(slots_ptr + first - 1, mask=first > 0, other=-1).to(tl.int64)
    begin = first
    num_misses = tl.full([], 0, tl.int32)
    num_rejected = tl.full([], 0, tl.int32)
    is_first = (before != slot) & (slot != padding_slot)
    going = is_first
    while going:
        lanes = tl.arange(0, LANES)
        rows = begin + lanes
        inside = rows < num_rows
        others = tl.load(slots_ptr + rows, mask=inside, other=-1).to(tl.int64) != slot
        # Its own are those before the first of another request.
        count = tl.min(tl.where(others, lanes, LANES), axis=0)
        own = lanes < count
        ids = tl.load(ids_ptr + rows, mask=own, other=0)
        logits = tl.load(logits_ptr + rows.to(tl.int64) * row_stride + ids * token_stride, mask=own, other=0.0)
        drawn = tl.where(tl.abs(logits) < float("inf"), ids, not_finite)
        positions = tl.load(positions_ptr + rows, mask=own, other=0).to(tl.int64)
        places = history_ptr + slot * history_stride + positions
        is_miss = (own & (drawn != tl.load(places, mask=own, other=0))).to(tl.int32)
        is_output = num_misses + tl.cumsum(is_miss, axis=0) - is_miss == 0
        tl.store(ids_ptr + rows, tl.where(is_output, drawn, -1), mask=own)
        tl.store(places, tl.maximum(drawn, 0).to(tl.int32), mask=own)
        num_misses += tl.sum(is_miss, axis=0)
        num_rejected += tl.sum((own & ~is_output).to(tl.int32), axis=0)
        begin += LANES
        going = (count == LANES) & (begin < num_rows)
    tl.store(num_rejected_ptr + slot, num_rejected, mask=is_first)
