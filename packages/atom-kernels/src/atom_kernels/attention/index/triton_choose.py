"""The choice of a lightning index in Triton: the highest scores of each row, of equal ones the first.

The threshold is found digit by digit, from the highest of a score's 32 bits on: a pass over the row counts how often
each digit stands behind those that are found. No bit of the result depends on an order of threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.sampling.triton_rows import key_of
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def _ordered(scores):
    """Integers in the order of scores; both zeros are one."""
    return key_of(scores + 0.0)


@triton.jit
def _find_threshold(scores_ptr, visible, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The score of the last position that is taken, as an integer, and how many of that score are taken."""
    nth = tl.arange(0, BLOCK)
    needed = tl.full([], TOP_K, tl.int32)
    found = tl.full([], 0, tl.int32)
    for digit in tl.static_range(4):
        # Counts by digit, the highest first; behind them those of all other scores.
        counts = tl.zeros([512], tl.int32)
        for at in range(0, visible, BLOCK):
            here = at + nth < visible
            value = _ordered(tl.load(scores_ptr + at + nth, mask=here, other=0.0))
            if digit == 0:
                # The highest digit has the sign.
                place = 127 - (value >> 24)
            else:
                here &= (value >> (32 - 8 * digit)) == found
                place = 255 - ((value >> (24 - 8 * digit)) & 255)
            counts += tl.histogram(tl.where(here, place, 256), 512)
        up_to = tl.cumsum(counts, axis=0)
        above = (tl.arange(0, 512) < 256) & (up_to < needed)
        needed -= tl.max(tl.where(above, up_to, 0), axis=0)
        num_above = tl.sum(above.to(tl.int32), axis=0)
        found = 127 - num_above if digit == 0 else (found << 8) | (255 - num_above)
    return found, needed


# What changes from step to step must not make Triton compile again.
@triton.jit(do_not_specialize=["first_row", "scores_stride"])
def choose_kernel(
    scores_ptr, visible_ptr, out_ptr, first_row, scores_stride,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a row, counted from `first_row`; out is ``[T, TOP_K]``, -1 behind the last position."""
    row = tl.program_id(0)
    token = (first_row + row).to(tl.int64)
    # Written before the step's first layer.
    visible = tl.load(visible_ptr + token)
    out_ptr += token * TOP_K
    wait_for_inputs(DEPENDENT)
    if visible <= TOP_K:
        for at in range(0, TOP_K, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            tl.store(out_ptr + k, tl.where(k < visible, k, -1), mask=k < TOP_K)
    else:
        scores_ptr += row.to(tl.int64) * scores_stride
        threshold, num_equal = _find_threshold(scores_ptr, visible, TOP_K, BLOCK)
        nth = tl.arange(0, BLOCK)
        taken, equals = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
        for at in range(0, visible, BLOCK):
            here = at + nth < visible
            value = _ordered(tl.load(scores_ptr + at + nth, mask=here, other=0.0))
            is_equal = (here & (value == threshold)).to(tl.int32)
            earlier = equals + tl.cumsum(is_equal, axis=0) - is_equal
            take = (here & (value > threshold)).to(tl.int32) | (is_equal & (earlier < num_equal).to(tl.int32))
            place = taken + tl.cumsum(take, axis=0) - take
            tl.store(out_ptr + place, at + nth, mask=take > 0)
            taken += tl.sum(take, axis=0)
            equals += tl.sum(is_equal, axis=0)
